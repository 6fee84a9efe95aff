# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of paths in ``efuse top`` and ``efuse stat``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from efuse.stats.paths import PathCounters
from efuse.tables.columns import HISTORY, MOUNT, number, ratio, time, word
from efuse.tables.grid import Column
from efuse.tables.rows import Row
from efuse.units import duration, share

__all__ = ["PATHS", "TOTAL_HEADERS", "total_row"]

PATHS: tuple[Column[Row[Any]], ...] = (
    word(
        "PATH",
        lambda r: r.path,
        "path that READs and WRITEs took",
        least=6,
        style=lambda row: "magenta",
    ),
    MOUNT,
    number("RATE/s", lambda r: r.per_second, "requests", sort="rate"),
    ratio("SHARE", lambda r: r.share, "share of the mount's READs and WRITEs", sort="share"),
    number("BYTES/s", lambda r: r.bytes_per_second, "bytes read or written", sort="bytes", rank=1),
    time(
        "P50", lambda r: r.p50_ns, "half of them were answered within that time", sort="p50", rank=2
    ),
    time("P99", lambda r: r.p99_ns, "99 of 100 were answered within that time", sort="p99", rank=3),
    HISTORY,
    time("PREDICTED", lambda r: r.predicted_ns, "mean of the predicted times", rank=6),
    time("ACTUAL", lambda r: r.actual_ns, "mean of the actual times of the same requests", rank=7),
    ratio("OFF", lambda r: r.error_ratio, "how far predictions were off", sort="off", rank=5),
)

TOTAL_HEADERS = ("PATH", "CHOSEN", "REQUESTS", "PARTIAL", "BYTES", "PROBES", "P50", "P99", "OFF")
"""Titles for `total_row`. All columns except the first are numbers."""


def total_row(path: str, counters: PathCounters) -> tuple[str, ...]:
    """Return the counters of a path as text, one cell per column."""
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
