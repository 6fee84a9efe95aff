# SPDX-License-Identifier: LGPL-2.1-or-later
"""What each mount did: samples of its counters, and the rates between them."""

from efuse.stats.channels import Balance, Channel, ChannelCounters, ChannelGroup, ChannelRates
from efuse.stats.model import (
    COUNTERS,
    REASONS,
    Counters,
    MapUsage,
    MountRates,
    OpcodeRates,
    Sample,
    between,
    rates,
)
from efuse.stats.paths import PathCounters, PathRates
from efuse.stats.read import read, read_all

__all__ = [
    "COUNTERS",
    "REASONS",
    "Balance",
    "Channel",
    "ChannelCounters",
    "ChannelGroup",
    "ChannelRates",
    "Counters",
    "MapUsage",
    "MountRates",
    "OpcodeRates",
    "PathCounters",
    "PathRates",
    "Sample",
    "between",
    "rates",
    "read",
    "read_all",
]
