# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of paths in ``efuse top`` and ``efuse stat``."""

from __future__ import annotations

from collections.abc import Sequence

from efuse.stats.paths import PathCounters, PathRates
from efuse.tui.units import count, duration, share

__all__ = ["PATH_HEADERS", "TOTAL_HEADERS", "path_row", "total_row"]

PATH_HEADERS = ("PATH", "RATE/s", "SHARE", "BYTES/s", "P50", "P99", "PREDICTED", "ACTUAL", "OFF")
"""Of `path_row`; all but the first are numbers."""

TOTAL_HEADERS = ("PATH", "CHOSEN", "REQUESTS", "PARTIAL", "BYTES", "PROBES", "P50", "P99", "OFF")
"""Of `total_row`; likewise."""


def path_row(row: PathRates) -> tuple[str, ...]:
    """Return what happened on a path as words."""
    return (
        row.path,
        count(row.per_second),
        share(row.share),
        count(row.bytes_per_second),
        duration(row.p50_ns),
        duration(row.p99_ns),
        duration(row.predicted_ns),
        duration(row.actual_ns),
        share(row.error_ratio),
    )


def total_row(path: str, counters: PathCounters) -> tuple[str, ...]:
    """Return a path's counters as words."""
    numbers: Sequence[int] = (
        counters.chosen,
        counters.requests,
        counters.partial,
        counters.bytes,
        counters.probes,
    )
    return (
        path,
        *map(str, numbers),
        duration(counters.quantile_ns(0.5)),
        duration(counters.quantile_ns(0.99)),
        share(counters.error_ratio),
    )
