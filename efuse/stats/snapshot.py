# SPDX-License-Identifier: LGPL-2.1-or-later
"""All that can be watched at a moment, mounts and devices, and what happened between two."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from efuse.control import connections
from efuse.errors import ControlError
from efuse.stats.devices import DeviceRates, DeviceSample, devices_between, read_devices
from efuse.stats.model import MountRates, Sample, between
from efuse.stats.read import read_all

__all__ = ["Change", "Snapshot", "change", "take"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The mounts and the devices, as they are now."""

    mounts: tuple[Sample, ...] = ()
    devices: tuple[DeviceSample, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return the same fields as plain values for ``json.dumps``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Change:
    """What happened between two snapshots."""

    mounts: tuple[MountRates, ...] = ()
    devices: tuple[DeviceRates, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return the same fields as plain values for ``json.dumps``."""
        return asdict(self)


def take(*, timing: bool = True) -> Snapshot:
    """Read all mounts and devices. Where there are devices, efuse.ko need not be loaded.

    :param timing: as of `efuse.stats.read`.
    :raises ControlError: it is not loaded, and there are no devices.
    """
    devices = read_devices()
    if devices and not _has_mounts():
        return Snapshot(devices=devices)
    return Snapshot(read_all(timing=timing), devices)


def _has_mounts() -> bool:
    try:
        return bool(connections())
    except ControlError:
        return False


def change(before: Snapshot, after: Snapshot) -> Change:
    """Return what happened to every mount and device that both hold, in the order of *after*."""
    return Change(
        tuple(between(before.mounts, after.mounts)),
        devices_between(before.devices, after.devices),
    )
