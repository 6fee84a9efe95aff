# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows of the tables of paths, channels and devices, and the line about a mount's channels."""

from __future__ import annotations

from efuse.stats.channels import ChannelRates
from efuse.stats.devices import DeviceRates
from efuse.stats.model import MountRates
from efuse.stats.paths import PathCounters, PathRates
from efuse.tables.channel_table import ChannelView, balance_words, channel_rates_of
from efuse.tables.rows import Row, mount_name
from efuse.tables.text import Line, line
from efuse.tui.model import Model
from efuse.units import share

__all__ = ["channel_line", "channel_rows", "device_rows", "path_rows"]


def path_rows(model: Model, connection: int | None) -> list[Row[PathRates]]:
    """Return one row for each path that was ever taken."""
    rows = []
    for m in model.mounts(connection):
        name, owner = mount_name(m), m.after.connection
        taken = {rates.path for rates in m.paths}
        ever = [p for p, c in m.after.paths.items() if c.requests or c.chosen]
        for rates in (*m.paths, *(_idle(path) for path in sorted(ever) if path not in taken)):
            rows.append(Row(rates, model.history.of("path", owner, rates.path), name, owner))
    return rows


def _idle(path: str) -> PathRates:
    return PathRates(path, 0.0, 0.0, 0.0, None, None, None, None, None, PathCounters())


def channel_rows(
    model: Model, connection: int | None, view: ChannelView = "auto"
) -> list[Row[ChannelRates]]:
    """Return one row per channel or per NUMA node, as *view* selects."""
    rows = []
    for m in model.mounts(connection):
        name, owner = mount_name(m), m.after.connection
        of_cpus = channel_rates_of(m, view) is m.channels
        for rates in channel_rates_of(m, view):
            kind, which = ("cpu", rates.group.cpus[0]) if of_cpus else ("node", rates.group.node)
            history = () if which is None else model.history.of(kind, owner, which)
            rows.append(Row(rates, history, name, owner))
    return rows


def channel_line(m: MountRates) -> Line:
    """Return a line with the settings of a mount's channels."""
    words = [*balance_words(m.after.balance)]
    if m.channel_total is not None:
        words += [
            ("elsewhere", share(m.channel_total.elsewhere_share)),
            ("stolen", share(m.channel_total.stolen_share)),
        ]
    parts: list[str | tuple[str, str]] = []
    for name, value in words:
        parts += [(f"{name} ", "dim"), value if name == words[-1][0] else f"{value}  "]
    return line(*parts)


def device_rows(model: Model) -> list[Row[DeviceRates]]:
    """Return one row for each device that has power."""
    return [Row(r, model.history.of("device", r.after.name)) for r in model.change.devices]
