# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sample all mounts and devices at one moment, and compute what happened between two samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from efuse.control import KeptFiles, connections
from efuse.errors import ControlError
from efuse.stats.devices import DeviceRates, DeviceSample, devices_between, read_devices
from efuse.stats.model import MountRates, Sample, between
from efuse.stats.plain import PlainMounts
from efuse.stats.read import read_all

__all__ = ["Change", "Snapshot", "change", "take"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Samples of all mounts and devices at one moment.

    :ivar notes: sentences about what could not be read.
    """

    mounts: tuple[Sample, ...] = ()
    devices: tuple[DeviceSample, ...] = ()
    notes: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return all fields as plain values for ``json.dumps``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Change:
    """Activity between two snapshots. ``notes`` are those of the later one."""

    mounts: tuple[MountRates, ...] = ()
    devices: tuple[DeviceRates, ...] = ()
    notes: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return all fields as plain values for ``json.dumps``."""
        return asdict(self)


def take(
    *, timing: bool = True, plain: PlainMounts | None = None, files: KeptFiles | None = None
) -> Snapshot:
    """Sample all mounts and devices.

    :param timing: whether to read times; see `efuse.stats.read`.
    :param plain: source of samples of plain FUSE mounts; None leaves them out.
    :param files: files that are kept open; see `efuse.stats.read`.
    :raises ControlError: efuse.ko is not loaded, and there are no devices, nor has there been any
        plain FUSE mount.
    """
    devices = read_devices()
    others = plain.read() if plain is not None else ()
    own: tuple[Sample, ...] = ()
    if _is_loaded() or not (devices or (plain is not None and plain.seen)):
        own = read_all(timing=timing, files=files)
    return Snapshot((*own, *others), devices, plain.notes if plain is not None else ())


def _is_loaded() -> bool:
    try:
        connections()
    except ControlError:
        return False
    return True


def change(before: Snapshot, after: Snapshot) -> Change:
    """Return the activity of every mount and device that is in both, in the order of *after*."""
    return Change(
        tuple(between(before.mounts, after.mounts)),
        devices_between(before.devices, after.devices),
        after.notes,
    )
