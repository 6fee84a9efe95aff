# SPDX-License-Identifier: LGPL-2.1-or-later
"""Times of requests by powers of two: how many took how long.

Pure values, as in `efuse.stats.model`.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BUCKETS", "Latency", "added", "bounds_ns", "quantile_ns"]

BUCKETS = 28
"""How many buckets there are: below 256 ns, then one for each power of two, then from 17 s on."""

_SHORTEST_NS = 256

Latency = tuple[int, ...]
"""Requests by bucket, or nothing where none was timed."""


def bounds_ns(bucket: int) -> tuple[int, int | None]:
    """Return where a bucket begins, and where it ends; None: it does not."""
    start = _SHORTEST_NS << (bucket - 1) if bucket else 0
    return start, _SHORTEST_NS << bucket if bucket + 1 < BUCKETS else None


def added(parts: Sequence[Latency]) -> Latency:
    """Return the sum of several."""
    return tuple(sum(bucket) for bucket in zip(*filter(None, parts), strict=True))


def quantile_ns(latency: Latency, share: float) -> float | None:
    """Return the time within which *share* (0 to 1) of the requests were answered.

    It is in the right bucket: right within a factor of two.
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
    return found  # what is left is less than a request: an error of rounding
