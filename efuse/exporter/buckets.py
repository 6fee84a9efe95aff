# SPDX-License-Identifier: LGPL-2.1-or-later
"""The classes of a ``latency`` as the cumulative buckets of a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from efuse.stats.latency import BUCKETS
from efuse.stats.paths import LATENCIES

__all__ = ["BOUNDS_NS", "cumulative"]

_PER_POWER = 4  # classes to each power of two, behind that of what is shorter than 256 ns

BOUNDS_NS = tuple(256 << power for power in range(1 + (LATENCIES - 1) // _PER_POWER))
"""Upper bounds of the buckets in nanoseconds: powers of two from 256 ns to 2^34 ns (17 s)."""


def cumulative(latency: Sequence[int]) -> list[int]:
    """Return how many requests took less than each of `BOUNDS_NS`, and at last how many there are.

    Four classes of a path become a bucket: 106 of them would be more than they are worth.

    :param latency: requests by their class, as in docs/sysfs.md, or as `efuse.stats.latency` has
        them.
    """
    sums = list(accumulate(latency))
    return [*sums[: -1 : 1 if len(sums) == BUCKETS else _PER_POWER], sums[-1]]
