# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare two reports of the same workloads: what became better or worse."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from efuse.bench.state import MACHINE
from efuse.errors import UsageError

__all__ = ["Change", "Comparison", "compared"]

_Key = tuple[str, str, str, str, str, str]

_SETTINGS = ("daemon", "rounds", "scale", "lower")


@dataclass(frozen=True, slots=True)
class Change:
    """The second result of one system at one workload, compared with the first.

    :ivar measure: ``value``, or the name of one of the results' ``measures``.
    :ivar first: median in the first report, in `unit`.
    :ivar second: median in the second report, in `unit`.
    :ivar ratio: how many times better the second median is; below 1 it is worse.
    :ivar min: ratio of the second report's worst round to the first report's best round.
    :ivar max: ratio of the second report's best round to the first report's worst round.
    :ivar verdict: ``better``, ``worse``, ``noise`` if the rounds overlap, or ``wrong`` if the
        second run saw something other than the contents of the lower file system.
    """

    workload: str
    system: str
    daemon: str
    measure: str
    unit: str
    first: float
    second: float
    ratio: float
    min: float
    max: float
    verdict: str

    def failed(self, within: float) -> bool:
        """Return whether the result is worse by more than the fraction *within*, or wrong."""
        return self.verdict == "wrong" or (self.verdict == "worse" and self.ratio < 1 - within)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two reports compared; `warnings` name the differences in machine, settings and versions."""

    clock: str
    warnings: tuple[str, ...]
    changes: tuple[Change, ...]

    def json(self, within: float) -> dict[str, Any]:
        """Return the comparison as plain values for ``json.dumps``."""
        changes = [{**asdict(c), "failed": c.failed(within)} for c in self.changes]
        return {
            "clock": self.clock,
            "within": within,
            "warnings": list(self.warnings),
            "changes": changes,
        }


@dataclass(frozen=True, slots=True)
class _Series:
    rounds: list[float]
    less: bool
    verified: bool


def compared(first: dict[str, Any], second: dict[str, Any]) -> Comparison:
    """Compare the second report with the first.

    :raises UsageError: the reports use different clocks, or share no workload on a system.
    """
    clocks = [str(report["settings"].get("clock", "")) for report in (first, second)]
    if clocks[0] != clocks[1]:
        raise UsageError(
            f"the reports cannot be compared: one uses {clocks[0] or 'no clock'}, "
            f"the other {clocks[1] or 'no clock'}",
            hint="take both with the same --clock",
        )
    ours, theirs = dict(_series(first)), dict(_series(second))
    if not ours.keys() & theirs.keys():
        raise UsageError("the reports cannot be compared: they share no workload")
    changes, empty = [], []
    for key, one in ours.items():
        if key in theirs:
            other = theirs[key]
            if all(one.rounds) and all(other.rounds):
                changes.append(_change(key, one, other))
            else:
                empty.append(key)
    return Comparison(
        clocks[0],
        (
            *_differences(first, second),
            *_listed("only in the first report", [key for key in ours if key not in theirs]),
            *_listed("only in the second report", [key for key in theirs if key not in ours]),
            *_listed("not compared, since its first value is 0", empty),
            *_listed(
                "wrong results in the first report",
                [k for k, one in ours.items() if not one.verified],
            ),
        ),
        tuple(changes),
    )


def _series(report: dict[str, Any]) -> Iterator[tuple[_Key, _Series]]:
    for result in report["results"]:
        names = (result["workload"], result["system"], result["daemon"])
        less, verified = result["better"] == "lower", result["verified"]
        key = (*names, "value", result["unit"], result["better"])
        yield key, _Series(result["rounds"], less, verified)
        for name, series in result["measures"].items():
            if series["compared"]:
                key = (*names, name, series["unit"], "lower")
                yield key, _Series(series["rounds"], True, verified)


def _change(key: _Key, first: _Series, second: _Series) -> Change:
    medians = statistics.median(first.rounds), statistics.median(second.rounds)
    if first.less:
        ratio = medians[0] / medians[1]
        least, most = min(first.rounds) / max(second.rounds), max(first.rounds) / min(second.rounds)
    else:
        ratio = medians[1] / medians[0]
        least, most = min(second.rounds) / max(first.rounds), max(second.rounds) / min(first.rounds)
    if not second.verified:
        verdict = "wrong"
    elif least <= 1 <= most:
        verdict = "noise"
    else:
        verdict = "better" if least > 1 else "worse"
    workload, system, daemon, measure, unit, _better = key
    return Change(workload, system, daemon, measure, unit, *medians, ratio, least, most, verdict)


def _differences(first: dict[str, Any], second: dict[str, Any]) -> Iterator[str]:
    for part, names in (("machine", MACHINE), ("settings", _SETTINGS)):
        yield from _among(part, first[part], second[part], names)
    yield from _among("", first, second, ("kernel",))
    versions = sorted({*first["versions"], *second["versions"]})
    yield from _among("version of", first["versions"], second["versions"], versions)


def _among(part: str, first: Any, second: Any, names: Any) -> Iterator[str]:
    for name in names:
        one, other = first.get(name), second.get(name)
        if one != other:
            yield f"{part} {name} differs: {one} and {other}".lstrip()


def _listed(what: str, keys: list[_Key]) -> Iterator[str]:
    if keys:
        names = dict.fromkeys(f"{key[0]} on {key[1]}" for key in keys)
        yield f"{what}: {', '.join(names)}"
