# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of channels in ``efuse top`` and ``efuse stat``: by CPU, or by NUMA node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, get_args

from rich.console import RenderableType
from rich.text import Text

from efuse.stats.channels import (
    Balance,
    Channel,
    ChannelGroup,
    ChannelRates,
    by_cpu,
    by_node,
    together,
)
from efuse.stats.model import MountRates
from efuse.tui.lines import busiest, line, number_table
from efuse.tui.units import count, duration, share

__all__ = [
    "CHANNEL_HEADERS",
    "CHANNEL_TOTAL_HEADERS",
    "CHANNEL_VIEWS",
    "ChannelView",
    "balance_words",
    "channel_lines",
    "channel_row",
    "channel_rows",
    "channel_total_row",
    "channel_totals",
]

ChannelView = Literal["auto", "none", "nodes", "cpus"]
CHANNEL_VIEWS: tuple[ChannelView, ...] = get_args(ChannelView)
"""What there may be a row for; ``auto``: each CPU if those are few and have room, else a node."""

CHANNEL_HEADERS = (
    *("NODE", "CPU", "RATE/s", "DEPTH", "FLIGHT", "SERVICE", "LOAD"),
    *("POLL", "SPIN", "SLEEP", "ELSE/s", "STOLEN/s"),
)
"""Of `channel_row`; all but the first two are numbers."""

CHANNEL_TOTAL_HEADERS = (
    *("NODE", "CPU", "SLOTS", "DEPTH", "FLIGHT", "SERVICE", "LOOK", "SLEEP"),
    *("POLL", "SPIN", "SENT", "STOLEN", "ELSEWHERE", "WOKEN", "BROUGHT", "REFUSED"),
)
"""Of `channel_total_row`; likewise."""

_FEW_CPUS = 16
_OPCODE_ROWS = 4  # that ``auto`` leaves in a frame
_CPUS_WIDTH = 8
_OTHER_COLUMNS = 72  # what a frame needs beside the column of CPUs


def _cpu_list(cpus: Sequence[int]) -> str:
    """Return CPUs as the kernel writes a list of them: ``0-3,8``."""
    starts = [cpus[0], *(b for a, b in pairwise(cpus) if b != a + 1)]
    ends = [*(a for a, b in pairwise(cpus) if b != a + 1), cpus[-1]]
    pairs = zip(starts, ends, strict=True)
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in pairs)


def _cpus(cpus: Sequence[int], width: int | None) -> str:
    """Return the list of CPUs, or how many they are if it is longer than *width*."""
    words = _cpu_list(cpus)
    return words if width is None or len(words) <= width else f"{len(cpus)} CPUs"


def _node(group: ChannelGroup) -> str:
    return "all" if group.node is None else str(group.node)


def channel_row(row: ChannelRates, cpus_width: int | None = None) -> tuple[str, ...]:
    """Return what happened at channels as words.

    :param cpus_width: the most characters that the list of CPUs may have; None: any number.
    """
    group = row.group
    return (
        _node(group),
        _cpus(group.cpus, cpus_width),
        count(row.per_second),
        count(group.depth),
        count(group.in_flight),
        duration(group.service_ns),
        "-" if row.load is None else count(row.load),
        share(row.poll_hit_ratio),
        share(row.spin_hit_ratio),
        count(group.sleeping),
        count(row.elsewhere_per_second),
        count(row.stolen_per_second),
    )


def channel_total_row(group: ChannelGroup, name: str = "") -> tuple[str, ...]:
    """Return the counters of channels as words.

    :param name: in place of the node.
    """
    counters = group.counters
    return (
        name or _node(group),
        _cpu_list(group.cpus),
        str(group.slots),
        str(group.depth),
        str(group.in_flight),
        duration(group.service_ns),
        str(group.looking),
        str(group.sleeping),
        share(counters.poll_hit_ratio),
        share(counters.spin_hit_ratio),
        str(counters.sent),
        str(counters.stolen),
        str(counters.elsewhere),
        str(counters.others_woken),
        str(counters.brought),
        str(counters.refused),
    )


def channel_totals(channels: Mapping[int, Channel]) -> list[tuple[str, ...]]:
    """Return the rows of a sample's channels, by CPU if those are few, and their total."""
    groups = by_cpu(channels) if len(channels) <= _FEW_CPUS else by_node(channels)
    rows = [channel_total_row(group) for group in groups]
    return [*rows, channel_total_row(together(channels), "total")]


def balance_words(balance: Balance) -> tuple[tuple[str, str], ...]:
    """Return how requests are sent to channels, as names and values."""
    return (
        ("policy", balance.policy),
        ("threshold", str(balance.threshold)),
        ("spread", str(balance.spread)),
        ("spin", duration(balance.spin_ns)),
    )


def channel_rows(
    m: MountRates, view: ChannelView, room: int | None = None
) -> tuple[ChannelRates, ...]:
    """Return the rows that *view* wants, in the order of nodes.

    :param room: how many are wanted at most by ``auto``; None: any number.
    """
    if view == "none" or not m.after.has_channels:
        return ()
    if view == "auto":
        few = len(m.channels) <= (_FEW_CPUS if room is None else min(_FEW_CPUS, room))
        view = "cpus" if few else "nodes"
    return m.channels if view == "cpus" else m.nodes


def channel_lines(
    m: MountRates, view: ChannelView, rows: int | None, width: int
) -> tuple[list[RenderableType], int]:
    """Return the part of a frame that is about channels, and how many lines that is.

    :param rows: lines that there are for it and for the opcodes; None: any number. Of rows
        that have no room the busiest are shown.
    """
    if rows is None:
        found, room = channel_rows(m, view), 1 << 30
    else:
        room = rows - 2 - (_OPCODE_ROWS if view == "auto" else 1)
        found = channel_rows(m, view, room)
    if not found or room < min(len(found), 2):
        return [], 0
    shown = found if len(found) <= room else busiest(found, room - 1, _busy)
    cpus_width = max(_CPUS_WIDTH, width - _OTHER_COLUMNS)
    table = number_table(
        CHANNEL_HEADERS,
        [channel_row(row, cpus_width) for row in shown],
        {"NODE": "magenta", "CPU": "magenta"},
        left=("NODE", "CPU"),
    )
    parts: list[RenderableType] = [_summary(m), table]
    if len(shown) == len(found):
        return parts, 2 + len(shown)
    what = "CPUs" if found is m.channels else "nodes"
    parts.append(line((f"and {len(found) - len(shown)} quieter {what}", "dim")))
    return parts, 3 + len(shown)


def _busy(row: ChannelRates) -> tuple[float, int]:
    return row.per_second, row.group.depth + row.group.in_flight


def _summary(m: MountRates) -> Text:
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
