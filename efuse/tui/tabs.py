# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tabs of ``efuse top``: rows, columns, and the lines around the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from efuse.tables.channel_table import CHANNELS
from efuse.tables.device_table import DEVICE_UNITS, DEVICES
from efuse.tables.grid import Column, in_order
from efuse.tables.path_table import PATHS
from efuse.tables.rows import Row
from efuse.tables.text import Line, line
from efuse.tui.model import Key, Model
from efuse.tui.mounts import MOUNTS, mount_details, mount_rows, note_lines, total_line
from efuse.tui.opcodes import OPCODES, opcode_rows
from efuse.tui.rows import channel_line, channel_rows, device_rows, path_rows
from efuse.tui.view import TABS, View

__all__ = ["Rows", "key_of", "rows", "tab_of"]

Rows = Sequence[Row[Any]]


@dataclass(frozen=True, slots=True)
class Tab:
    """One tab.

    :ivar columns: columns of the table.
    :ivar find: function that returns the rows, unsorted.
    :ivar nothing: text if there are no rows.
    :ivar of_plain: text if there are no rows because all mounts are plain FUSE.
    :ivar above: function that returns the lines above the table.
    :ivar below: function that returns the lines below the table, about the marked row.
    """

    columns: Sequence[Column[Row[Any]]]
    find: Callable[[Model, View], Rows]
    nothing: str
    of_plain: str = ""
    above: Callable[[Model, View], list[Line]] = lambda model, view: []
    below: Callable[[Row[Any], int], list[Line]] = lambda row, width: []


def _above_mounts(model: Model, view: View) -> list[Line]:
    return note_lines(model.change)


def _above_opcodes(model: Model, view: View) -> list[Line]:
    found = model.mounts(view.mount)
    total = [total_line(found[0])] if len(found) == 1 else []
    return [*(note_lines(model.change) if any(m.after.is_plain for m in found) else []), *total]


def _above_channels(model: Model, view: View) -> list[Line]:
    found = [m for m in model.mounts(view.mount) if m.after.has_channels]
    return [channel_line(found[0])] if len(found) == 1 else []


def _above_devices(model: Model, view: View) -> list[Line]:
    return [line((DEVICE_UNITS, "dim"))] if model.change.devices else []


_NO_MOUNTS = "no FUSE file system is mounted: efuse mount --help"

_TABS = {
    "mounts": Tab(
        MOUNTS,
        lambda model, view: mount_rows(model),
        _NO_MOUNTS,
        above=_above_mounts,
        below=mount_details,
    ),
    "opcodes": Tab(
        OPCODES,
        lambda model, view: opcode_rows(model, view.mount),
        "no requests",
        above=_above_opcodes,
    ),
    "paths": Tab(
        PATHS,
        lambda model, view: path_rows(model, view.mount),
        "no READs and no WRITEs",
        "plain FUSE has no paths: all READs and WRITEs go to the daemon, see opcodes",
    ),
    "channels": Tab(
        CHANNELS,
        lambda model, view: channel_rows(model, view.mount, view.channels),
        "no daemon has made channels: docs/channels.md lists daemons that do",
        "plain FUSE has no channels: requests wait in one queue for all CPUs",
        above=_above_channels,
    ),
    "devices": Tab(
        DEVICES,
        lambda model, view: device_rows(model),
        "no emulated device has power: efuse csd --help",
        above=_above_devices,
    ),
}


def tab_of(view: View) -> Tab:
    """Return the open tab."""
    return _TABS[TABS[view.tab].name]


def rows(model: Model, view: View) -> Rows:
    """Return the rows of the open tab that pass the filter, sorted."""
    tab = tab_of(view)
    found = [row for row in tab.find(model, view) if _passes(row, tab, view.filter.lower())]
    return in_order(tab.columns, found, view.order)


def _passes(row: Row[Any], tab: Tab, part: str) -> bool:
    """Return whether *part* is in the name of the row's mount, or in a word in its cells."""
    names = (column.value(row) for column in tab.columns)
    words = (row.mount, *(name for name in names if isinstance(name, str)))
    return any(part in word.lower() for word in words)


def key_of(row: Row[Any]) -> Key:
    """Return the identity of a row."""
    return row.connection, str(getattr(row.what, "opcode", ""))
