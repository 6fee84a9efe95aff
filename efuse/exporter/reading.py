# SPDX-License-Identifier: LGPL-2.1-or-later
"""All that can be read at a scrape, and what could not be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from efuse.control import connections
from efuse.errors import EfuseError
from efuse.stats import DeviceSample, Sample, maps, read_all, read_devices

__all__ = ["Reading", "look"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The mounts and the devices as they are now.

    :ivar problems: why something is not there that was asked for.
    """

    mounts: tuple[Sample, ...] = ()
    devices: tuple[DeviceSample, ...] = ()
    problems: tuple[EfuseError, ...] = ()

    @property
    def up(self) -> int:
        """1: all was read that was asked for, else 0."""
        return int(not self.problems)


def look(*, times: bool, with_maps: bool) -> Reading:
    """Read all mounts and devices; what cannot be read is left out and said.

    :param times: read times as well, which makes the kernel take them for 10 s.
    :param with_maps: count what is in the maps, which takes root.
    """
    problems: list[EfuseError] = []
    mounts: list[Sample] = []
    devices: tuple[DeviceSample, ...] = ()
    try:
        for sample in read_all(timing=times):
            try:
                mounts.append(_counted(sample) if with_maps else sample)
            except EfuseError as error:
                mounts.append(sample)
                problems.append(error)
    except EfuseError as error:
        problems.append(error)
    try:
        devices = read_devices()
    except EfuseError as error:
        problems.append(error)
    return Reading(tuple(mounts), devices, tuple(problems))


def _counted(sample: Sample) -> Sample:
    try:
        return replace(sample, maps=maps.usage(sample.connection))
    except EfuseError:
        if sample.connection in connections():
            raise
        return sample  # unmounted meanwhile
