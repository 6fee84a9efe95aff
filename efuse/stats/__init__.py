# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sample the counters of mounts and devices, and compute the rates between two samples."""

from efuse.stats.channels import Balance, Channel, ChannelCounters, ChannelGroup, ChannelRates
from efuse.stats.devices import DeviceCounters, DeviceRates, DeviceSample, read_devices
from efuse.stats.history import History
from efuse.stats.model import (
    COUNTERS,
    REASONS,
    Counters,
    DaemonEnd,
    MapUsage,
    MountRates,
    OpcodeRates,
    Sample,
    between,
    rates,
)
from efuse.stats.paths import PathCounters, PathRates
from efuse.stats.plain import PlainMounts, plain_connections
from efuse.stats.read import read, read_all
from efuse.stats.snapshot import Change, Snapshot, change, take

__all__ = [
    "COUNTERS",
    "REASONS",
    "Balance",
    "Change",
    "Channel",
    "ChannelCounters",
    "ChannelGroup",
    "ChannelRates",
    "Counters",
    "DaemonEnd",
    "DeviceCounters",
    "DeviceRates",
    "DeviceSample",
    "History",
    "MapUsage",
    "MountRates",
    "OpcodeRates",
    "PathCounters",
    "PathRates",
    "PlainMounts",
    "Sample",
    "Snapshot",
    "between",
    "change",
    "plain_connections",
    "rates",
    "read",
    "read_all",
    "read_devices",
    "take",
]
