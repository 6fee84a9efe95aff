# SPDX-License-Identifier: LGPL-2.1-or-later
"""Emulated computational storage devices: ``csd.ko`` and its directories in configfs."""

from efuse.csd.attributes import ATTRIBUTES, Attribute, Kind
from efuse.csd.devices import Device, create, devices
from efuse.csd.loading import load, unload
from efuse.csd.profiles import PROFILES, Profile

__all__ = [
    "ATTRIBUTES",
    "PROFILES",
    "Attribute",
    "Device",
    "Kind",
    "Profile",
    "create",
    "devices",
    "load",
    "unload",
]
