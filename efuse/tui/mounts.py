# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of mounts in ``efuse top``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from efuse.stats.model import MapUsage, MountRates
from efuse.tui.columns import HISTORY, MOUNT, number, ratio
from efuse.tui.frame import Line, line
from efuse.tui.grid import Column
from efuse.tui.model import Model, Row, mount_name
from efuse.tui.units import count, duration, share

__all__ = ["MOUNTS", "maps_line", "mount_details", "mount_rows", "state_line", "total_line"]


def _fullest(m: MountRates) -> MapUsage | None:
    return max(m.after.maps, key=lambda usage: usage.ratio, default=None)


def _fullest_words(row: Row[MountRates]) -> str:
    usage = _fullest(row.what)
    return "-" if usage is None else f"{usage.name} {share(usage.ratio)}"


def _program(m: MountRates) -> str:
    return m.after.ops if m.after.state == "attached" else "plain"


MOUNTS: tuple[Column[Row[Any]], ...] = (
    replace(MOUNT, shared=False),
    Column(
        "ID",
        "number of the connection",
        lambda row: str(row.connection),
        sort="id",
        value=lambda row: row.connection,
        up=True,
        rank=5,
    ),
    number("RATE/s", lambda m: m.total.per_second, "requests", sort="rate"),
    ratio("HIT", lambda m: m.total.hit_ratio, "answered in the kernel", sort="hits", good=True),
    number(
        "DAEMON/s", lambda m: m.total.daemon_per_second, "sent to the daemon", sort="daemon", rank=1
    ),
    number("WAIT", lambda m: m.after.waiting, "at the daemon now", sort="waiting", rank=6),
    Column(
        "PROGRAMS",
        "name of the attached program set; plain: there is none",
        lambda row: _program(row.what),
        sort="programs",
        value=lambda row: _program(row.what),
        up=True,
        rank=2,
        left=True,
        style=lambda row: "green" if row.what.after.state == "attached" else "yellow",
    ),
    Column(
        "RULE",
        "consistency: how long what the daemon said is believed",
        lambda row: row.what.after.consistency,
        rank=3,
        least=9,
        left=True,
    ),
    HISTORY,
    Column(
        "FULLEST MAP",
        "the map that has the least room, and how much of it is used",
        _fullest_words,
        rank=7,
        left=True,
        style=lambda row: (
            "red" if (usage := _fullest(row.what)) is not None and usage.ratio > 0.95 else ""
        ),
    ),
)


def mount_rows(model: Model) -> list[Row[MountRates]]:
    """Return a row for each mount."""
    return [
        Row(m, model.history.of("mount", m.after.connection), mount_name(m), m.after.connection)
        for m in model.change.mounts
    ]


def state_line(m: MountRates, width: int) -> Line:
    """Return which mount it is, and how it is."""
    sample = m.after
    attached = sample.state == "attached"
    name = sample.mountpoint or "(not mounted here)"
    tail = f"  #{sample.connection}  "
    state = f"{sample.ops} attached" if attached else "plain"
    ends = f"  {sample.consistency}  {sample.waiting} waiting"
    room = max(8, width - len(tail + state + ends))
    if len(name) > room:
        name = "..." + name[3 - room :]
    return line((name, "bold cyan"), tail, (state, "green" if attached else "yellow"), ends)


def total_line(m: MountRates) -> Line:
    """Return what happened on the whole mount."""
    total = m.total
    return line(
        ("total ", "dim"),
        f"{count(total.per_second)}/s",
        ("  hit ", "dim"),
        share(total.hit_ratio),
        ("  daemon ", "dim"),
        f"{count(total.daemon_per_second)}/s",
        ("  kernel ", "dim"),
        duration(total.hit_mean_ns),
        ("  daemon ", "dim"),
        duration(total.daemon_mean_ns),
    )


def maps_line(m: MountRates) -> Line:
    """Return what the maps hold, and what they had no room for."""
    sample = m.after
    parts: list[str | tuple[str, str]] = [("maps ", "dim")]
    if sample.map_full:
        parts.append((f"FULL {count(sample.map_full)}  ", "bold red"))
    if sample.garbage:
        parts.append((f"GARBAGE {count(sample.garbage)}  ", "bold red"))
    for usage in sample.maps:
        parts.append((f"{usage.name} {share(usage.ratio)}  ", "red" if usage.ratio > 0.95 else ""))
    return line(*parts, f"learned {count(sample.learned)}")


def mount_details(row: Row[MountRates], width: int) -> list[Line]:
    """Return more of the row that is marked."""
    lines = [line(""), state_line(row.what, width), maps_line(row.what)]
    if row.what.after.exit_info != "none":
        lines.append(line(("last detached: ", "dim"), row.what.after.exit_info))
    return lines
