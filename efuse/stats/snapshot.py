# SPDX-License-Identifier: LGPL-2.1-or-later
"""All that can be watched at a moment, mounts and devices, and what happened between two."""

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
    """The mounts and the devices, as they are now.

    :ivar notes: sentences about what could not be read.
    """

    mounts: tuple[Sample, ...] = ()
    devices: tuple[DeviceSample, ...] = ()
    notes: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return the same fields as plain values for ``json.dumps``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Change:
    """What happened between two snapshots; ``notes`` are those of the later one."""

    mounts: tuple[MountRates, ...] = ()
    devices: tuple[DeviceRates, ...] = ()
    notes: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return the same fields as plain values for ``json.dumps``."""
        return asdict(self)


def take(
    *, timing: bool = True, plain: PlainMounts | None = None, files: KeptFiles | None = None
) -> Snapshot:
    """Read all mounts and devices.

    :param timing: as of `efuse.stats.read`.
    :param plain: reads the plain FUSE mounts; None: those are left out.
    :param files: as of `efuse.stats.read`.
    :raises ControlError: efuse.ko is not loaded, and there is and was nothing else.
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
    """Return what happened to every mount and device that both hold, in the order of *after*."""
    return Change(
        tuple(between(before.mounts, after.mounts)),
        devices_between(before.devices, after.devices),
        after.notes,
    )
