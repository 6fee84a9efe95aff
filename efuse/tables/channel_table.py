# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of channels in ``efuse top`` and ``efuse stat``: by CPU, or by NUMA node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

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
from efuse.tables.columns import HISTORY, MOUNT, number, ratio, time
from efuse.tables.grid import Column
from efuse.tables.rows import Row
from efuse.units import duration, share

__all__ = [
    "CHANNELS",
    "CHANNEL_TOTAL_HEADERS",
    "CHANNEL_VIEWS",
    "ChannelView",
    "balance_words",
    "channel_rates_of",
    "channel_totals",
]

ChannelView = Literal["auto", "nodes", "cpus"]
CHANNEL_VIEWS: tuple[ChannelView, ...] = get_args(ChannelView)
"""Kinds of rows; ``auto`` is one row per CPU if there are few CPUs, else one per NUMA node."""

CHANNEL_TOTAL_HEADERS = (
    *("NODE", "CPU", "SLOTS", "DEPTH", "FLIGHT", "SERVICE", "POLLING", "SLEEP"),
    *("POLL", "SPIN", "SENT", "STOLEN", "ELSEWHERE", "WOKEN", "BROUGHT", "REFUSED"),
)
"""Titles for `channel_total_row`. All columns except the first two are numbers."""

_FEW_CPUS = 16

CHANNELS: tuple[Column[Row[Any]], ...] = (
    Column(
        "NODE",
        "NUMA node of the CPUs",
        lambda row: _node(row.what.group),
        sort="node",
        value=lambda row: row.what.group.node,
        up=True,
        left=True,
        style=lambda row: "magenta",
    ),
    Column(
        "CPU",
        "CPUs of the channels in which requests wait",
        lambda row: _cpu_list(row.what.group.cpus),
        sort="cpu",
        value=lambda row: row.what.group.cpus[0],
        up=True,
        left=True,
        style=lambda row: "magenta",
        draw=lambda row, width: _cpus(row.what.group.cpus, width),
        least=8,
    ),
    MOUNT,
    number("RATE/s", lambda r: r.per_second, "requests put into their queues", sort="rate"),
    number("DEPTH", lambda r: r.group.depth, "requests that wait for the daemon now", sort="depth"),
    number(
        "FLIGHT",
        lambda r: r.group.in_flight,
        "requests that the daemon has in slots now",
        sort="flight",
    ),
    time(
        "SERVICE",
        lambda r: r.group.service_ns,
        "mean time of a request at the daemon",
        sort="service",
    ),
    number(
        "LOAD",
        lambda r: r.load,
        "mean number of requests at the daemon",
        sort="load",
        rank=2,
        least=4,
    ),
    HISTORY,
    ratio("POLL", lambda r: r.poll_hit_ratio, "polls of workers that found a request", rank=7),
    ratio("SPIN", lambda r: r.spin_hit_ratio, "polls of callers that found an answer", rank=8),
    number("SLEEP", lambda r: r.group.sleeping, "workers that sleep now", rank=6),
    number(
        "ELSE/s",
        lambda r: r.elsewhere_per_second,
        "requests sent from there to other channels",
        sort="elsewhere",
        rank=5,
    ),
    number(
        "STOLEN/s",
        lambda r: r.stolen_per_second,
        "requests read on other CPUs",
        sort="stolen",
        rank=1,
    ),
)


def _cpu_list(cpus: Sequence[int]) -> str:
    """Format CPUs as the kernel formats a CPU list: ``0-3,8``."""
    starts = [cpus[0], *(b for a, b in pairwise(cpus) if b != a + 1)]
    ends = [*(a for a, b in pairwise(cpus) if b != a + 1), cpus[-1]]
    pairs = zip(starts, ends, strict=True)
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in pairs)


def _cpus(cpus: Sequence[int], width: int) -> str:
    """Format CPUs as a list, or as their number if the list is longer than *width*."""
    words = _cpu_list(cpus)
    return words if len(words) <= width else f"{len(cpus)} CPUs"


def _node(group: ChannelGroup) -> str:
    return "all" if group.node is None else str(group.node)


def channel_total_row(group: ChannelGroup, name: str = "") -> tuple[str, ...]:
    """Return the counters of a group of channels as text, one cell per column.

    :param name: text for the first cell, instead of the NUMA node.
    """
    counters = group.counters
    return (
        name or _node(group),
        _cpu_list(group.cpus),
        str(group.slots),
        str(group.depth),
        str(group.in_flight),
        duration(group.service_ns),
        str(group.polling),
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
    """Return rows for the channels of a sample, per CPU if there are few, and a row for all."""
    groups = by_cpu(channels) if len(channels) <= _FEW_CPUS else by_node(channels)
    rows = [channel_total_row(group) for group in groups]
    return [*rows, channel_total_row(together(channels), "total")]


def balance_words(balance: Balance) -> tuple[tuple[str, str], ...]:
    """Return the settings of the channels as pairs of name and value."""
    return (
        ("policy", balance.policy),
        ("threshold", str(balance.threshold)),
        ("spread", str(balance.spread)),
        ("spin", duration(balance.spin_ns)),
    )


def channel_rates_of(m: MountRates, view: ChannelView = "auto") -> tuple[ChannelRates, ...]:
    """Return the rates for the rows of *view*, ordered by node."""
    if not m.after.has_channels:
        return ()
    if view == "auto":
        view = "cpus" if len(m.channels) <= _FEW_CPUS else "nodes"
    return m.channels if view == "cpus" else m.nodes
