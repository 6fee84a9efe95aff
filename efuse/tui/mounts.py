# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of mounts in ``efuse top``."""

from __future__ import annotations

from dataclasses import replace
from textwrap import wrap
from typing import Any

from efuse.stats.model import MapUsage, MountRates
from efuse.stats.snapshot import Change
from efuse.tables.columns import HISTORY, MOUNT, number, of_efuse, of_plain, ratio, time, word
from efuse.tables.grid import Column
from efuse.tables.rows import Row, mount_name
from efuse.tables.text import Line, line
from efuse.tables.words import state_words, transport_words
from efuse.tui.model import Model
from efuse.units import count, duration, share

__all__ = [
    "MOUNTS",
    "mount_details",
    "mount_lines",
    "mount_rows",
    "note_lines",
    "total_line",
]


def _fullest(m: MountRates) -> MapUsage | None:
    return max(m.after.maps, key=lambda usage: usage.ratio, default=None)


def _fullest_words(row: Row[MountRates]) -> str:
    usage = _fullest(row.what)
    return "-" if usage is None else f"{usage.name} {share(usage.ratio)}"


def _program(m: MountRates) -> str:
    if m.after.is_plain:
        return "-"
    return m.after.ops if m.after.state == "attached" else "plain"


def _rate(m: MountRates) -> float | None:
    """Return the number of requests per second; None if requests are not counted."""
    return None if m.after.since_ns is None else m.total.per_second


def _error_rate(m: MountRates) -> float | None:
    counted_here = m.after.is_plain and m.after.since_ns is not None
    return m.total.errors_per_second if counted_here else None


def _daemon_rate(m: MountRates) -> float | None:
    return None if m.after.since_ns is None else m.total.daemon_per_second


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
    word(
        "KIND",
        lambda m: m.after.kind,
        "efuse, or fuse: plain FUSE, whose requests all go to the daemon",
        sort="kind",
        rank=4,
        style=lambda row: "" if row.is_plain else "green",
    ),
    number("RATE/s", _rate, "requests", sort="rate"),
    replace(
        ratio("HIT", lambda m: m.total.hit_ratio, "answered in the kernel", sort="hits", good=True),
        applies=of_efuse,
    ),
    number("DAEMON/s", _daemon_rate, "sent to the daemon", sort="daemon", rank=1),
    replace(
        number("ERR/s", _error_rate, "answered by the daemon with an error", rank=8),
        applies=of_plain,
    ),
    replace(
        time(
            "P50", lambda m: m.total.p50_ns, "half of them were answered within that time", rank=8
        ),
        applies=of_plain,
    ),
    replace(
        time("P99", lambda m: m.total.p99_ns, "99 of 100 were answered within that time", rank=8),
        applies=of_plain,
    ),
    number("WAIT", lambda m: m.after.waiting, "requests at the daemon now", sort="waiting", rank=6),
    replace(
        word(
            "PROGRAMS",
            _program,
            "name of the attached program set; plain: there is none",
            sort="programs",
            rank=2,
            style=lambda row: state_words(row.what.after)[1],
        ),
        applies=of_efuse,
    ),
    Column(
        "RULE",
        "consistency: how long the daemon's answers are believed",
        lambda row: "-" if row.is_plain else row.what.after.consistency,
        rank=3,
        least=9,
        left=True,
        applies=of_efuse,
    ),
    HISTORY,
    Column(
        "FULLEST MAP",
        "the map with the least room left, and how much of it is used",
        _fullest_words,
        rank=7,
        left=True,
        style=lambda row: (
            "red" if (usage := _fullest(row.what)) is not None and usage.ratio > 0.95 else ""
        ),
        applies=of_efuse,
    ),
)


def mount_rows(model: Model) -> list[Row[MountRates]]:
    """Return one row for each mount."""
    return [
        mount_row(m, model.history.of("mount", m.after.connection)) for m in model.change.mounts
    ]


def mount_row(m: MountRates, history: tuple[float, ...] = ()) -> Row[MountRates]:
    """Return the row for a mount."""
    return Row(m, history, mount_name(m), m.after.connection, m.after.is_plain)


def state_line(m: MountRates, width: int) -> Line:
    """Return a line with the name and the state of a mount."""
    sample = m.after
    name = sample.mountpoint or "(not mounted here)"
    tail = f"  #{sample.connection}  "
    state, style, ends = state_words(sample)
    room = max(8, width - len(tail + state + ends))
    if len(name) > room:
        name = "..." + name[3 - room :]
    return line((name, "bold cyan"), tail, (state, style), ends)


def total_line(m: MountRates) -> Line:
    """Return a line with the activity of a whole mount."""
    total = m.total
    if m.after.is_plain:
        words = [
            ("total", f"{count(total.per_second)}/s"),
            ("errors", f"{count(total.errors_per_second)}/s"),
            ("mean", duration(total.daemon_mean_ns)),
            ("p50", duration(total.p50_ns)),
            ("p99", duration(total.p99_ns)),
        ]
    else:
        words = [
            ("total", f"{count(total.per_second)}/s"),
            ("hit", share(total.hit_ratio)),
            ("daemon", f"{count(total.daemon_per_second)}/s"),
            ("kernel", duration(total.hit_mean_ns)),
            ("daemon", duration(total.daemon_mean_ns)),
        ]
    parts: list[str | tuple[str, str]] = []
    for name, value in words:
        parts += [(f"{'  ' if parts else ''}{name} ", "dim"), value]
    return line(*parts)


def maps_line(m: MountRates) -> Line:
    """Return a line with the usage of a mount's maps, and what did not fit."""
    sample = m.after
    parts: list[str | tuple[str, str]] = [("maps ", "dim")]
    if sample.map_full:
        parts.append((f"FULL {count(sample.map_full)}  ", "bold red"))
    if sample.invalid_verdicts:
        parts.append((f"INVALID VERDICTS {count(sample.invalid_verdicts)}  ", "bold red"))
    for usage in sample.maps:
        parts.append((f"{usage.name} {share(usage.ratio)}  ", "red" if usage.ratio > 0.95 else ""))
    return line(*parts, f"learned {count(sample.learned)}")


def mount_lines(m: MountRates, width: int) -> list[Line]:
    """Return the lines about a mount as a whole."""
    if m.after.since_ns is None:
        return [state_line(m, width)]
    lines = [state_line(m, width), total_line(m)]
    return lines if m.after.is_plain else [*lines, maps_line(m)]


def mount_details(row: Row[MountRates], width: int) -> list[Line]:
    """Return the lines with details of the marked row."""
    m = row.what
    if m.after.is_plain:
        return [line(""), *mount_lines(m, width)]
    way = line(("transport ", "dim"), transport_words(m.after))
    lines = [line(""), state_line(m, width), way, maps_line(m)]
    if m.after.exit_info != "none":
        lines.append(line(("last detached: ", "dim"), m.after.exit_info))
    return lines


def note_lines(change: Change) -> list[Line]:
    """Return the lines about what could not be read."""
    return [line((words, "yellow")) for note in change.notes for words in wrap(note, 78)]
