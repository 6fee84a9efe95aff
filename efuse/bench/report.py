# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a benchmark found: one JSON, and the table that is made from it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

__all__ = ["Ratio", "Report", "Result", "ratios", "table"]


@dataclass(frozen=True, slots=True)
class Result:
    """One workload on one system. ``value`` is the median of ``rounds``, in ``unit``.

    ``daemon_requests`` and ``context_switches`` are the daemon's, per round (median).
    ``verified``: every round saw what the lower file system holds. ``paths`` are the READs and
    WRITEs of all rounds by the path that answered them; nothing where there is no eFuse.
    """

    workload: str
    system: str
    daemon: str
    value: float
    unit: str
    better: str
    rounds: tuple[float, ...]
    daemon_requests: int
    context_switches: int
    verified: bool
    paths: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better ``of`` is than ``over``, round by round: above 1 is better."""

    workload: str
    daemon: str
    of: str
    over: str
    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class Report:
    """All of it, as ``--json`` writes it."""

    machine: dict[str, Any]
    kernel: str
    versions: dict[str, str]
    settings: dict[str, Any]
    results: tuple[Result, ...]
    ratios: tuple[Ratio, ...] = field(default=())

    def json(self) -> dict[str, Any]:
        """Return it as plain values for ``json.dumps``."""
        return asdict(self)


def ratios(results: Iterable[Result], of: str = "efuse") -> tuple[Ratio, ...]:
    """Return how *of* compares with every other system of the same workload and daemon.

    :raises ValueError: two systems have not the same number of rounds.
    """
    known = list(results)
    found = []
    for mine in (r for r in known if r.system == of):
        for other in known:
            same = (other.workload, other.daemon) == (mine.workload, mine.daemon)
            if same and other.system != of:
                pairs = zip(mine.rounds, other.rounds, strict=True)
                each = [b / a if mine.better == "lower" else a / b for a, b in pairs]
                middle = statistics.median(each)
                names = (mine.workload, mine.daemon, of, other.system)
                found.append(Ratio(*names, middle, min(each), max(each)))
    return tuple(found)


def table(report: dict[str, Any]) -> Table:
    """Make the table for people from the JSON's values."""
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for title in ("WORKLOAD", "SYSTEM"):
        made.add_column(title, no_wrap=True)
    for title in ("VALUE", "REQUESTS", "SWITCHES", "EFUSE IS BETTER"):
        made.add_column(title, justify="right")
    made.add_column("TRUE")
    mine = (r for r in report["ratios"] if r["of"] == "efuse")
    found = {(r["workload"], r["daemon"], r["over"]): r for r in mine}
    for result in report["results"]:
        ratio = found.get((result["workload"], result["daemon"], result["system"]))
        made.add_row(
            result["workload"],
            result["system"],
            f"{result['value']:.4g} {result['unit']}",
            str(result["daemon_requests"]),
            str(result["context_switches"]),
            _times(ratio) if ratio else "",
            "yes" if result["verified"] else "NO",
        )
    return made


def _times(ratio: dict[str, Any]) -> str:
    return f"{ratio['median']:.3g} x ({ratio['min']:.3g}-{ratio['max']:.3g})"
