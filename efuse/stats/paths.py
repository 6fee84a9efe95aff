# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counters and rates of the paths of READs and WRITEs: use, times and predictions.

Pure values, as in `efuse.stats.model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter, sub

__all__ = ["LATENCIES", "PATH_COUNTERS", "PathCounters", "PathRates", "path_rates"]

LATENCIES = 106
"""Number of values in the line ``latency`` of a path; see docs/sysfs.md."""

_SHORTEST_NS = 256  # Shorter times are one bucket. Above, each power of two has four buckets.


def _starts_ns(index: int) -> float:
    """Return the start of a bucket of ``latency``, in ns."""
    if index == 0:
        return 0.0
    power, step = divmod(index - 1, 4)
    return _SHORTEST_NS * 2.0**power * (4 + step) / 4


@dataclass(frozen=True, slots=True)
class PathCounters:
    """Counters of one path, named as the lines of ``paths/<path>``."""

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

    def has_decreased(self, before: PathCounters, timing: bool = True) -> bool:
        """Return whether a counter is lower than in *before*.

        :param before: an earlier sample.
        :param timing: whether to compare the times too.
        """
        change = self - before
        if not timing:
            change = change.untimed()
        return any(number < 0 for number in (*_numbers(change), *change.latency))

    def quantile_ns(self, share: float) -> float | None:
        """Return the time in ns within which *share* (0 to 1) of the measured requests were served.

        It is interpolated within a bucket. There are four buckets per power of two, so it is right
        within an eighth. None if nothing was measured.
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
        """Total error of the predictions, as a share of the total time taken."""
        return self.error_ns / self.actual_ns if self.actual_ns else None

    def untimed(self) -> PathCounters:
        """Return the counters with all times set to 0."""
        return replace(self, ns=0, timed=0, latency=(0,) * LATENCIES)


PATH_COUNTERS = tuple(f.name for f in fields(PathCounters) if f.name != "latency")
"""Names of a path's counters, which are the names of its lines in sysfs, without `latency`."""

_numbers = attrgetter(*PATH_COUNTERS)  # much faster than one getattr() per counter


@dataclass(frozen=True, slots=True)
class PathRates:
    """Activity of one path between two samples. ``counters`` holds the differences.

    :ivar share: share of the mount's READs and WRITEs that were answered on this path, 0 to 1.
    :ivar predicted_ns: mean predicted time of the requests with a prediction, in ns.
    :ivar actual_ns: mean actual time of these requests, in ns.
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
    """Return the activity of each path that was taken, the busiest first.

    :param before: counters of the earlier sample, by path.
    :param after: counters of the later sample, by path.
    :param seconds: time between the samples.
    :param timing: whether both samples have times.
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
