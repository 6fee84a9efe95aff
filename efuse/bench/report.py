# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a benchmark found: one JSON, and the table that is made from it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "COPIED",
    "Ratio",
    "Report",
    "Result",
    "RoundCounters",
    "Series",
    "measure_tables",
    "ratios",
    "table",
]


COPIED = "bytes_copied"
"""The measure of what the kernel copied to and from the daemon, in a round or for a request."""

# So many columns have room in 80 characters.
_VALUES_WIDE, _TIMES_WIDE = 4, 3


@dataclass(frozen=True, slots=True)
class Series:
    """What was found in each round beside its value; ``value`` is the median. Less is better, if it
    is ``compared``."""

    value: float
    unit: str
    rounds: tuple[float, ...]
    compared: bool = True


@dataclass(frozen=True, slots=True)
class RoundCounters:
    """What the kernel counted in one round on eFuse.

    ``requests`` are all, ``hits`` those that it answered itself, ``daemon`` those that went to the
    daemon; ``paths`` are the READs and WRITEs by the path that answered them.
    """

    requests: int
    hits: int
    daemon: int
    paths: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """One workload on one system. ``value`` is the median of ``rounds``, in ``unit``.

    ``daemon_requests`` and ``context_switches`` are the daemon's, per round (median).
    ``verified``: every round saw what the lower file system holds. ``paths`` are the READs and
    WRITEs of all rounds by the path that answered them; nothing where there is no eFuse.

    ``measures`` has what else a workload found, by name. ``channels`` are the kernel's counters of
    all rounds, CPU by CPU, of a workload that asks how requests reach the daemon.
    ``rounds_counters`` are the kernel's counters round by round; nothing where there is no eFuse.
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
    channels: tuple[dict[str, int], ...] = ()
    measures: dict[str, Series] = field(default_factory=dict)
    rounds_counters: tuple[RoundCounters, ...] = ()

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Result:
        """Return what :meth:`Report.json` wrote of a result.

        :raises KeyError, TypeError: it is none.
        """
        series = {
            name: Series(**{**one, "rounds": tuple(one["rounds"])})
            for name, one in value["measures"].items()
        }
        return cls(
            **{
                **value,
                "rounds": tuple(value["rounds"]),
                "channels": tuple(value["channels"]),
                "measures": series,
                "rounds_counters": tuple(RoundCounters(**one) for one in value["rounds_counters"]),
            }
        )


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better ``of`` is than ``over``, round by round: above 1 is better.

    ``measure`` says at what: ``value``, or one of the results' ``measures``.
    """

    workload: str
    daemon: str
    of: str
    over: str
    median: float
    min: float
    max: float
    measure: str = "value"


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

    @property
    def workloads(self) -> frozenset[str]:
        """The names of those that it has results of."""
        return frozenset(result.workload for result in self.results)

    def extended(self, results: Iterable[Result], of: Iterable[str]) -> Report:
        """Return it with more results, and all ratios of the systems *of*."""
        every = (*self.results, *results)
        return replace(
            self,
            results=every,
            ratios=tuple(ratio for system in of for ratio in ratios(every, system)),
        )


def ratios(results: Iterable[Result], of: str = "efuse") -> tuple[Ratio, ...]:
    """Return how *of* compares with every other system of the same workload and daemon.

    Of a measure that was 0 in a round there is none.

    :raises ValueError: two systems have not the same number of rounds.
    """
    known = list(results)
    found = []
    for mine in (r for r in known if r.system == of):
        for other in known:
            same = (other.workload, other.daemon) == (mine.workload, mine.daemon)
            if same and other.system != of:
                names = (mine.workload, mine.daemon, of, other.system)
                less = mine.better == "lower"
                found.append(Ratio(*names, *_spread(mine.rounds, other.rounds, less)))
                compared = {n: s.rounds for n, s in mine.measures.items() if s.compared}
                for name, rounds in compared.items():
                    theirs = other.measures[name].rounds
                    if all(rounds) and all(theirs):
                        found.append(Ratio(*names, *_spread(rounds, theirs, True), name))
    return tuple(found)


def _spread(
    mine: Iterable[float], others: Iterable[float], less: bool
) -> tuple[float, float, float]:
    """Return the median, the least and the greatest ratio; *less* is better."""
    each = [b / a if less else a / b for a, b in zip(mine, others, strict=True)]
    return statistics.median(each), min(each), max(each)


def table(report: dict[str, Any]) -> Table:
    """Make the table for people from the JSON's values."""
    made = _table(["VALUE", "REQUESTS", "SWITCHES", "EFUSE IS BETTER"])
    made.add_column("TRUE")
    for result in report["results"]:
        made.add_row(
            result["workload"],
            result["system"],
            f"{result['value']:.4g} {result['unit']}",
            str(result["daemon_requests"]),
            str(result["context_switches"]),
            _times(report, result, "value"),
            "yes" if result["verified"] else "NO",
        )
    return made


def measure_tables(report: dict[str, Any]) -> list[Table]:
    """Make the tables of what was measured beside the values, and of its ratios if there are."""
    results = [result for result in report["results"] if result["measures"]]
    if not results:
        return []
    series = {name: one for result in results for name, one in result["measures"].items()}
    values = [
        _filled(results, names, [f"{name} {series[name]['unit']}" for name in names], _value)
        for names in _parts(list(series), _VALUES_WIDE)
    ]
    compared = [name for name in series if series[name]["compared"]]
    times = [
        _filled(
            results,
            names,
            [f"efuse is better: {name}" for name in names],
            lambda result, name: _times(report, result, name),
        )
        for names in _parts(compared, _TIMES_WIDE)
    ]
    return [*values, *(table for table in times if table.row_count)]


def _parts(names: list[str], length: int) -> list[list[str]]:
    return [names[first : first + length] for first in range(0, len(names), length)]


def _value(result: dict[str, Any], name: str) -> str:
    return f"{result['measures'][name]['value']:.4g}" if name in result["measures"] else ""


def _filled(
    results: list[dict[str, Any]],
    names: list[str],
    titles: list[str],
    cell: Callable[[dict[str, Any], str], str],
) -> Table:
    """Make a table with a row for each of *results* that has any of *names*."""
    made = _table(title.replace("_", " ") for title in titles)
    for result in results:
        cells = [cell(result, name) for name in names]
        if any(cells):
            made.add_row(result["workload"], result["system"], *cells)
    return made


def _table(titles: Iterable[str]) -> Table:
    from rich.table import Table  # the daemons that are measured print none

    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for title in ("WORKLOAD", "SYSTEM"):
        made.add_column(title, no_wrap=True)
    for title in titles:
        made.add_column(title.upper(), justify="right")
    return made


def _times(report: dict[str, Any], result: dict[str, Any], measure: str) -> str:
    """Return how many times better ``efuse`` is than what has *result*; empty if that is itself."""
    for ratio in report["ratios"]:
        same = all(ratio[name] == result[name] for name in ("workload", "daemon"))
        pair = (ratio["of"], ratio["over"], ratio["measure"])
        if same and pair == ("efuse", result["system"], measure):
            return f"{ratio['median']:.3g} x ({ratio['min']:.3g}-{ratio['max']:.3g})"
    return ""
