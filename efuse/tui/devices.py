# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of devices in ``efuse top`` and ``efuse stat``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from efuse.stats.devices import DeviceRates, DeviceSample
from efuse.tui.lines import busiest, line, number_table
from efuse.tui.units import count, duration, share

__all__ = [
    "DEVICE_HEADERS",
    "DEVICE_TOTAL_HEADERS",
    "DEVICE_TOTAL_UNITS",
    "DEVICE_UNITS",
    "device_lines",
    "device_row",
    "device_total_row",
]

DEVICE_UNITS = "IN OUT MEDIA in MiB/s  DEV KERN POL in batches/s"
"""Of the columns whose titles do not say it."""

DEVICE_HEADERS = (
    *("DEVICE", "DISK", "CMD/s", "RD/s", "WR/s", "IN", "OUT", "MEDIA"),
    *("CORES", "DEV", "KERN", "POL", "OFF"),
)
"""Of `device_row`; all but the first two are numbers."""

DEVICE_TOTAL_UNITS = "IN OUT MEDIA in MiB  DEV KERN POL in batches"
"""Likewise."""

DEVICE_TOTAL_HEADERS = (
    *("DEVICE", "DISK", "CMD", "RD", "WR", "IN", "OUT", "MEDIA"),
    *("BUSY", "DEV", "KERN", "POL", "OFF", "MOUNT"),
)
"""Of `device_total_row`; all but the first two and the last are numbers."""

_MIB = 1 << 20
_NAME_WIDTH = 8
_OTHER_COLUMNS = 72  # what a frame needs beside the column of names


def _off(ratio: float | None) -> str:
    """Return how far predictions were off, in five characters up to a hundredfold."""
    return share(ratio) if ratio is None or ratio < 1 else f"{ratio:.0%}"


def _name(name: str, width: int | None) -> str:
    """Return a name, or its beginning if it is longer than *width*."""
    return name if width is None or len(name) <= width else f"{name[: width - 1]}\u2026"


def device_row(row: DeviceRates, name_width: int | None = None) -> tuple[str, ...]:
    """Return what happened at a device as words.

    :param name_width: the most characters that its name may have; None: any number.
    """
    rate = row.per_second
    return (
        _name(row.after.name, name_width),
        row.after.disk.removeprefix("/dev/"),
        count(rate["commands"]),
        count(rate["reads"]),
        count(rate["writes"]),
        count(rate["link_write_bytes"] / _MIB),
        count(rate["link_read_bytes"] / _MIB),
        count((rate["media_read_bytes"] + rate["media_write_bytes"]) / _MIB),
        share(row.core_busy_share),
        count(rate["chosen_device"]),
        count(rate["chosen_kernel"]),
        count(rate["chosen_policy"]),
        _off(row.error_ratio),
    )


def device_total_row(sample: DeviceSample) -> tuple[str, ...]:
    """Return a device's counters as words."""
    counters = sample.counters
    return (
        sample.name,
        sample.disk.removeprefix("/dev/"),
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


def device_lines(
    rows: Sequence[DeviceRates], room: int | None, width: int
) -> tuple[list[RenderableType], int]:
    """Return the part of a frame that is about devices, and how many lines that is.

    :param room: lines that there are for it; None: any number. Of rows that have no room the
        busiest are shown.
    """
    left = len(rows) if room is None else room - 2
    if not rows or left < min(len(rows), 2):
        return [], 0
    shown = rows if len(rows) <= left else busiest(rows, left - 1, _busy)
    name_width = max(_NAME_WIDTH, width - _OTHER_COLUMNS)
    table = number_table(
        DEVICE_HEADERS,
        [device_row(row, name_width) for row in shown],
        {"DEVICE": "magenta", "DISK": "magenta"},
        left=("DEVICE", "DISK"),
    )
    parts: list[RenderableType] = [line(("devices", "bold"), (f"  {DEVICE_UNITS}", "dim")), table]
    if len(shown) == len(rows):
        return parts, 2 + len(shown)
    parts.append(line((f"and {len(rows) - len(shown)} quieter devices", "dim")))
    return parts, 3 + len(shown)


def _busy(row: DeviceRates) -> int:
    return row.counters.commands + row.counters.reads + row.counters.writes
