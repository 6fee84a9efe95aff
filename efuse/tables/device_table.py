# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of devices in ``efuse top`` and ``efuse stat``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from efuse.stats.devices import DeviceRates, DeviceSample
from efuse.tables.columns import HISTORY, number, ratio, word
from efuse.tables.grid import Column
from efuse.tables.rows import Row
from efuse.tables.text import cut
from efuse.units import count, duration, share

__all__ = [
    "DEVICES",
    "DEVICE_TOTAL_HEADERS",
    "DEVICE_TOTAL_UNITS",
    "DEVICE_UNITS",
    "device_total_row",
]

DEVICE_UNITS = "IN OUT MEDIA in MiB/s  DEV KERN POL in batches/s"
"""Units of the rate columns whose titles do not show the unit."""

DEVICE_TOTAL_UNITS = "IN OUT MEDIA in MiB  DEV KERN POL in batches"
"""Units of the counter columns (`DEVICE_TOTAL_HEADERS`) whose titles do not show the unit."""

DEVICE_TOTAL_HEADERS = (
    *("DEVICE", "DISK", "CMD", "RD", "WR", "IN", "OUT", "MEDIA"),
    *("BUSY", "DEV", "KERN", "POL", "OFF", "MOUNT"),
)
"""Titles for `device_total_row`. All columns except the first two and the last are numbers."""

_MIB = 1 << 20


def _disk(sample: DeviceSample) -> str:
    return sample.disk.removeprefix("/dev/")


def _off(ratio: float | None) -> str:
    """Format the error of predictions, in at most five characters up to a factor of a hundred."""
    return share(ratio) if ratio is None or ratio < 1 else f"{ratio:.0%}"


def _media(r: DeviceRates) -> float:
    return (r.per_second["media_read_bytes"] + r.per_second["media_write_bytes"]) / _MIB


DEVICES: tuple[Column[Row[Any]], ...] = (
    replace(
        word(
            "DEVICE",
            lambda r: r.after.name,
            "name of the directory in configfs",
            least=8,
            style=lambda row: "magenta",
        ),
        draw=lambda row, width: cut(row.what.after.name, width),
    ),
    Column(
        "DISK",
        "the block device, in /dev",
        lambda row: _disk(row.what.after),
        rank=5,
        least=5,
        left=True,
        style=lambda row: "magenta",
    ),
    number("CMD/s", lambda r: r.per_second["commands"], "runs of functions", sort="rate"),
    number("RD/s", lambda r: r.per_second["reads"], "reads", sort="reads"),
    number("WR/s", lambda r: r.per_second["writes"], "writes", sort="writes", least=4),
    number(
        "IN",
        lambda r: r.per_second["link_write_bytes"] / _MIB,
        "MiB/s to the device",
        sort="in",
        least=4,
    ),
    number(
        "OUT",
        lambda r: r.per_second["link_read_bytes"] / _MIB,
        "MiB/s from the device",
        sort="out",
        least=4,
    ),
    number("MEDIA", _media, "MiB/s read and written on its medium", sort="media", rank=3),
    ratio("CORES", lambda r: r.core_busy_share, "busy share of its cores' time", sort="cores"),
    HISTORY,
    number(
        "DEV", lambda r: r.per_second["chosen_device"], "batches/s sent to the device", rank=2,
        least=4,
    ),
    number(
        "KERN", lambda r: r.per_second["chosen_kernel"], "batches/s left to the kernel", rank=2,
        least=4,
    ),
    number(
        "POL", lambda r: r.per_second["chosen_policy"], "batches/s decided by a policy", rank=6,
        least=3,
    ),
    Column(
        "OFF",
        "how far predictions were off",
        lambda row: _off(row.what.error_ratio),
        sort="off",
        value=lambda row: row.what.error_ratio,
        rank=1,
        least=5,
    ),
)  # fmt: skip


def device_total_row(sample: DeviceSample) -> tuple[str, ...]:
    """Return the counters of a device as text, one cell per column."""
    counters = sample.counters
    return (
        sample.name,
        _disk(sample),
        count(counters.commands),
        count(counters.reads),
        count(counters.writes),
        count(counters.link_write_bytes / _MIB),
        count(counters.link_read_bytes / _MIB),
        count((counters.media_read_bytes + counters.media_write_bytes) / _MIB),
        duration(counters.core_busy_ns),
        count(counters.chosen_device),
        count(counters.chosen_kernel),
        count(counters.chosen_policy),
        _off(counters.error_ratio),
        " ".join(sample.mounts) or "-",
    )
