# SPDX-License-Identifier: LGPL-2.1-or-later
"""Latency histograms with buckets by powers of two.

Pure values, as in `efuse.stats.model`.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BUCKETS", "Latency", "added", "bounds_ns", "quantile_ns"]

BUCKETS = 28
"""Number of buckets: one below 256 ns, one for each power of two, and one from 2^34 ns (17 s)."""

_SHORTEST_NS = 256

Latency = tuple[int, ...]
"""Number of requests in each bucket; empty if nothing was measured."""


def bounds_ns(bucket: int) -> tuple[int, int | None]:
    """Return the start and the end of a bucket in ns. The last bucket has no end: None."""
    start = _SHORTEST_NS << (bucket - 1) if bucket else 0
    return start, _SHORTEST_NS << bucket if bucket + 1 < BUCKETS else None


def added(parts: Sequence[Latency]) -> Latency:
    """Return the sum of several histograms."""
    return tuple(sum(bucket) for bucket in zip(*filter(None, parts), strict=True))


def quantile_ns(latency: Latency, share: float) -> float | None:
    """Return the time in ns within which *share* (0 to 1) of the requests were answered.

    It is interpolated within a bucket, so it is right within a factor of two. None if nothing was
    measured.
    """
    total = sum(latency)
    if not total:
        return None
    left = share * total
    found = None
    for bucket, number in enumerate(latency):
        if number:
            start, end = bounds_ns(bucket)
            if left <= number:
                return start if end is None else start + (end - start) * left / number
            found = start
        left -= number
    return found  # the rest is less than one request: a rounding error
