# SPDX-License-Identifier: LGPL-2.1-or-later
"""The output of ``efuse top`` without a terminal: all tables, mount by mount."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType

from efuse.stats.model import MountRates
from efuse.stats.snapshot import Change
from efuse.tables.channel_table import CHANNELS, channel_rates_of
from efuse.tables.columns import steady
from efuse.tables.device_table import DEVICE_UNITS, DEVICES
from efuse.tables.grid import Column, Order, grid, in_order
from efuse.tables.path_table import PATHS
from efuse.tables.rows import Row
from efuse.tables.text import Line, line
from efuse.tui.frame import Frame
from efuse.tui.mounts import mount_lines, note_lines
from efuse.tui.opcodes import OPCODES
from efuse.tui.rows import channel_line

__all__ = ["plain"]

_BY_RATE = Order("rate")


def plain(
    change: Change, *, order: Order = _BY_RATE, part: str = "", width: int = 80
) -> RenderableType:
    """Return the lines about all mounts, followed by the devices.

    :param order: order of the opcodes.
    :param part: show only opcodes whose name contains this text.
    :param width: width of the output in cells.
    """
    lines = [drawn for m in change.mounts for drawn in _mount(m, order, part, width)]
    lines = [*note_lines(change), *lines]
    if change.devices:
        lines.append(line(("devices", "bold"), (f"  {DEVICE_UNITS}", "dim")))
        lines += _table(DEVICES, change.devices, width)
    return Frame(lines)


def _table(columns: Sequence[Column[Row[Any]]], found: Sequence[Any], width: int) -> list[Line]:
    return grid(steady(columns), [Row(what) for what in found], width)


def _mount(m: MountRates, order: Order, part: str, width: int) -> list[Line]:
    lines = mount_lines(m, width)
    if m.after.since_ns is None:
        return lines
    if m.paths:
        lines += _table(PATHS, m.paths, width)
    channels = channel_rates_of(m)
    if channels:
        lines += [channel_line(m), *_table(CHANNELS, channels, width)]
    plain = m.after.is_plain
    rows = [Row(r, is_plain=plain) for r in m.opcodes if part.lower() in r.opcode]
    if rows:
        return [*lines, *grid(steady(OPCODES), in_order(OPCODES, rows, order), width)]
    return [*lines, line(("no requests" if not m.opcodes else "no opcode matches", "dim"))]
