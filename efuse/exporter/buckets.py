# SPDX-License-Identifier: LGPL-2.1-or-later
"""Convert latency histograms to the cumulative buckets of a Prometheus histogram."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from efuse.stats.latency import BUCKETS
from efuse.stats.paths import LATENCIES

__all__ = ["BOUNDS_NS", "cumulative"]

_PER_POWER = 4  # buckets of a path's `latency` per power of two, after the one below 256 ns

BOUNDS_NS = tuple(256 << power for power in range(1 + (LATENCIES - 1) // _PER_POWER))
"""Upper bounds of the buckets in nanoseconds: powers of two from 256 ns to 2^34 ns (17 s)."""


def cumulative(latency: Sequence[int]) -> list[int]:
    """Return how many requests took less than each of `BOUNDS_NS`, followed by the total number.

    For a path, four buckets become one: 106 Prometheus buckets would cost more than they are worth.

    :param latency: requests by bucket: of a path (docs/sysfs.md), or of `efuse.stats.latency`.
    """
    sums = list(accumulate(latency))
    return [*sums[: -1 : 1 if len(sums) == BUCKETS else _PER_POWER], sums[-1]]
