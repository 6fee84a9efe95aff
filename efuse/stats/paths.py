# SPDX-License-Identifier: LGPL-2.1-or-later
"""What READs and WRITEs took which path, how long that took, and how well it was predicted.

Pure values, as in `efuse.stats.model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter, sub

__all__ = ["LATENCIES", "PATH_COUNTERS", "PATH_TIMES", "PathCounters", "PathRates", "path_rates"]

LATENCIES = 106
"""Numbers in the file ``latency`` of a path: see docs/sysfs.md."""

_SHORTEST_NS = 256  # What is shorter is one class; above there are four to a power of two.

PATH_TIMES = ("ns", "timed", "latency")
"""The files that stand still unless somebody watches."""


def _starts_ns(index: int) -> float:
    """Return where a class of ``latency`` begins."""
    if index == 0:
        return 0.0
    power, step = divmod(index - 1, 4)
    return _SHORTEST_NS * 2.0**power * (4 + step) / 4


@dataclass(frozen=True, slots=True)
class PathCounters:
    """The counters of one path, as the files of ``paths/<path>/`` are named."""

    chosen: int = 0
    requests: int = 0
    partial: int = 0
    bytes: int = 0
    ns: int = 0
    timed: int = 0
    probes: int = 0
    predicted: int = 0
    predicted_ns: int = 0
    actual_ns: int = 0
    error_ns: int = 0
    latency: tuple[int, ...] = (0,) * LATENCIES

    def __sub__(self, before: PathCounters) -> PathCounters:
        changes = map(sub, _numbers(self), _numbers(before))
        numbers = dict(zip(PATH_COUNTERS, changes, strict=True))
        if self.latency == before.latency:
            return PathCounters(**numbers)
        return PathCounters(**numbers, latency=tuple(map(sub, self.latency, before.latency)))

    def quantile_ns(self, share: float) -> float | None:
        """Return the time within which *share* (0 to 1) of the timed requests were answered.

        Times are known by classes, four to each power of two: it is right within an eighth.
        """
        total = sum(self.latency)
        if not total:
            return None
        left = share * total
        for index, number in enumerate(self.latency):
            if number and left <= number:
                start = _starts_ns(index)
                end = _starts_ns(index + 1) if index + 1 < LATENCIES else start
                return start + (end - start) * left / number
            left -= number
        return _starts_ns(LATENCIES - 1)

    @property
    def error_ratio(self) -> float | None:
        """How far predictions were off, on the whole, as a share of the time that it took."""
        return self.error_ns / self.actual_ns if self.actual_ns else None

    def untimed(self) -> PathCounters:
        """Return the same without the times that stand still unless somebody watches."""
        return replace(self, ns=0, timed=0, latency=(0,) * LATENCIES)


PATH_COUNTERS = tuple(f.name for f in fields(PathCounters) if f.name != "latency")
"""Names of a path's counters, which are the names of its files in sysfs."""

_numbers = attrgetter(*PATH_COUNTERS)  # much quicker than one after the other


@dataclass(frozen=True, slots=True)
class PathRates:
    """What happened on one path between two samples. ``counters`` holds the differences.

    :ivar share: of the mount's READs and WRITEs, 0 to 1.
    :ivar predicted_ns: mean time that was predicted, where one was.
    :ivar actual_ns: mean time that those took.
    """

    path: str
    share: float
    per_second: float
    bytes_per_second: float
    p50_ns: float | None
    p99_ns: float | None
    predicted_ns: float | None
    actual_ns: float | None
    error_ratio: float | None
    counters: PathCounters


def path_rates(
    before: Mapping[str, PathCounters],
    after: Mapping[str, PathCounters],
    seconds: float,
    timing: bool = True,
) -> tuple[PathRates, ...]:
    """Return what happened on each path that was taken, the busiest first.

    :param timing: whether both have the times that stand still unless somebody watches.
    """
    changes = {path: now - before.get(path, PathCounters()) for path, now in after.items()}
    if not timing:
        changes = {path: change.untimed() for path, change in changes.items()}
    total = sum(change.requests for change in changes.values())
    found = [
        PathRates(
            path=path,
            share=change.requests / total if total else 0.0,
            per_second=change.requests / seconds,
            bytes_per_second=change.bytes / seconds,
            p50_ns=change.quantile_ns(0.5),
            p99_ns=change.quantile_ns(0.99),
            predicted_ns=change.predicted_ns / change.predicted if change.predicted else None,
            actual_ns=change.actual_ns / change.predicted if change.predicted else None,
            error_ratio=change.error_ratio,
            counters=change,
        )
        for path, change in changes.items()
        if change.requests or change.chosen
    ]
    return tuple(sorted(found, key=lambda row: (-row.counters.requests, row.path)))
