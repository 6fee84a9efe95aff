# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of the zoo: how many requests reached each daemon, on plain FUSE and on eFuse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from efuse.profiles import matching
from tests.zoo.daemons import Daemon
from tests.zoo.run import Outcome

__all__ = ["described", "table"]

_STEPS = ("first", "again", "afresh")
_HEAD = """\
| daemon | profile | first | again | READs again | caches dropped | all | hits | content |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def described(daemon: Daemon, plain: Outcome, ours: Outcome) -> dict[str, Any]:
    """Return what the table tells of a daemon, as a value for JSON."""
    known = matching(daemon.command(Path("/"), Path("/")))
    return {
        "daemon": daemon.program,
        "through": daemon.through,
        "read_only": daemon.read_only,
        "profile": known.consistency if known else "none",
        "plain": {**{step: plain.requests[step] for step in _STEPS}, "all": _all(plain.requests)},
        "efuse": {**{step: ours.requests[step] for step in _STEPS}, "all": _all(ours.requests)},
        "reads_again": ours.reads["again"],
        "hits": _all(ours.hits),
        "same": plain.seen == ours.seen,
    }


def _all(counted: dict[str, int]) -> int:
    return sum(counted.values())


def table(daemons: Sequence[dict[str, Any]]) -> str:
    """Return the table as Markdown. Requests are those on plain FUSE, then those on eFuse."""
    return "\n".join([_HEAD, *map(_row, daemons)])


def _row(found: dict[str, Any]) -> str:
    name = (f"`{found['daemon']}`", found["through"], "read-only" * found["read_only"])
    requests = {
        step: f"{found['plain'][step]} / {found['efuse'][step]}" for step in (*_STEPS, "all")
    }
    cells = (
        ", ".join(filter(None, name)),
        found["profile"],
        requests["first"],
        requests["again"],
        str(found["reads_again"]),
        requests["afresh"],
        requests["all"],
        str(found["hits"]),
        "same" if found["same"] else "DIFFERENT",
    )
    return f"| {' | '.join(cells)} |"
