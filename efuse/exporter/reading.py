# SPDX-License-Identifier: LGPL-2.1-or-later
"""All that can be read at a scrape, and what could not be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from efuse.control import connections
from efuse.errors import EfuseError
from efuse.stats import (
    Counters,
    DeviceSample,
    PlainMounts,
    Sample,
    maps,
    read_all,
    read_devices,
)
from efuse.stats.latency import Latency

__all__ = ["PlainOpcode", "Reading", "look"]


@dataclass(frozen=True, slots=True)
class PlainOpcode:
    """What was counted of an opcode of a plain FUSE mount."""

    counters: Counters
    latency: Latency


@dataclass(frozen=True, slots=True)
class Reading:
    """The mounts and the devices as they are now.

    :ivar problems: why something is not there that was asked for.
    :ivar plain_problem: why requests of the mounts ``plain`` are not counted.
    """

    mounts: tuple[Sample, ...] = ()
    devices: tuple[DeviceSample, ...] = ()
    problems: tuple[EfuseError, ...] = ()
    plain: tuple[Sample, ...] = ()
    plain_problem: EfuseError | None = None
    plain_missed: int = 0

    @property
    def up(self) -> int:
        """1: all was read that was asked for, else 0."""
        return int(not self.problems)

    @property
    def plain_up(self) -> int:
        """1: requests of plain FUSE mounts are counted, else 0."""
        return int(self.plain_problem is None)


def look(*, times: bool, with_maps: bool, plain: PlainMounts | None = None) -> Reading:
    """Read all mounts and devices; what cannot be read is left out and said.

    :param times: read times as well, which makes the kernel take them for 10 s.
    :param with_maps: count what is in the maps, which takes root.
    :param plain: reads the plain FUSE mounts; None: those are left out.
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
    found = Reading(tuple(mounts), devices, tuple(problems))
    if plain is None:
        return found
    others = plain.read()
    return replace(found, plain=others, plain_problem=plain.problem, plain_missed=plain.missed)


def _counted(sample: Sample) -> Sample:
    try:
        return replace(sample, maps=maps.usage(sample.connection))
    except EfuseError:
        if sample.connection in connections():
            raise
        return sample  # unmounted meanwhile
