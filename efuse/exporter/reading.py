# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read everything for one scrape, and collect the errors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from efuse.control import connections
from efuse.errors import EfuseError
from efuse.service.health import NO_SERVICE, Health, health
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
    """Counters of one opcode of a plain FUSE mount."""

    counters: Counters
    latency: Latency


@dataclass(frozen=True, slots=True)
class Reading:
    """Samples of the mounts and devices at one scrape.

    :ivar problems: errors about requested things that could not be read.
    :ivar service: what `efuse service` knows of its mounts.
    :ivar plain: samples of the plain FUSE mounts.
    :ivar plain_problem: the error that keeps plain FUSE mounts from being read, or their requests
        from being counted.
    :ivar plain_missed: number of requests of plain FUSE mounts that were missed.
    """

    mounts: tuple[Sample, ...] = ()
    devices: tuple[DeviceSample, ...] = ()
    problems: tuple[EfuseError, ...] = ()
    service: Health = NO_SERVICE
    plain: tuple[Sample, ...] = ()
    plain_problem: EfuseError | None = None
    plain_missed: int = 0

    @property
    def up(self) -> int:
        """1 if everything that was requested could be read, else 0."""
        return int(not self.problems)

    @property
    def plain_up(self) -> int:
        """1 if requests of plain FUSE mounts are counted, else 0."""
        return int(self.plain_problem is None)


def look(*, times: bool, with_maps: bool, plain: PlainMounts | None = None) -> Reading:
    """Read all mounts and devices. Leave out what cannot be read, and record the error.

    :param times: also read times, which makes the kernel measure every request for 10 s.
    :param with_maps: also count the elements of the maps. Needs root.
    :param plain: source of samples of plain FUSE mounts; None leaves them out.
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
    service = NO_SERVICE
    try:
        service = health()
    except EfuseError as error:
        problems.append(error)
    found = Reading(tuple(mounts), devices, tuple(problems), service)
    if plain is None:
        return found
    try:
        return replace(
            found, plain=plain.read(), plain_problem=plain.problem, plain_missed=plain.missed
        )
    except EfuseError as error:
        return replace(found, plain_problem=error)


def _counted(sample: Sample) -> Sample:
    try:
        return replace(sample, maps=maps.usage(sample.connection))
    except EfuseError:
        if sample.connection in connections():
            raise
        return sample  # it was unmounted meanwhile
