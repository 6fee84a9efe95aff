# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counters and rates of emulated storage devices (``csd.ko``)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from efuse.csd.devices import Device, devices
from efuse.errors import ControlError, NotSupportedError

__all__ = [
    "DEVICE_COUNTERS",
    "DeviceCounters",
    "DeviceRates",
    "DeviceSample",
    "device_rates",
    "devices_between",
    "read_devices",
]


@dataclass(frozen=True, slots=True)
class DeviceCounters:
    """Counters of a device, named as its files in configfs.

    `efuse.csd.ATTRIBUTES` describes each of them, with its unit.
    """

    link_read_bytes: int = 0
    link_write_bytes: int = 0
    media_read_bytes: int = 0
    media_write_bytes: int = 0
    core_busy_ns: int = 0
    reads: int = 0
    writes: int = 0
    commands: int = 0
    chosen_device: int = 0
    chosen_kernel: int = 0
    chosen_policy: int = 0
    predicted_ns: int = 0
    actual_ns: int = 0
    error_ns: int = 0

    def __sub__(self, before: DeviceCounters) -> DeviceCounters:
        return DeviceCounters(*(getattr(self, n) - getattr(before, n) for n in DEVICE_COUNTERS))

    @property
    def device_share(self) -> float | None:
        """Share of the batches that ran on the device, 0 to 1; None if there were no batches."""
        chosen = self.chosen_device + self.chosen_kernel
        return self.chosen_device / chosen if chosen else None

    @property
    def error_ratio(self) -> float | None:
        """Total error of the predictions, as a share of the total time taken."""
        return self.error_ns / self.actual_ns if self.actual_ns else None


DEVICE_COUNTERS = tuple(f.name for f in fields(DeviceCounters))
"""Names of a device's counters, which are the names of its files in configfs."""


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One device that has power, with its counters since it was created.

    :ivar name: name of the device's directory in configfs.
    :ivar taken_ns: time of the sample, in ns of CLOCK_MONOTONIC.
    :ivar disk: path of the block device.
    :ivar mounts: mount points of the block device that this process sees.
    :ivar cores: number of commands that can compute at the same time.
    """

    name: str
    taken_ns: int
    disk: str
    mounts: tuple[str, ...] = ()
    cores: int = 1
    counters: DeviceCounters = field(default_factory=DeviceCounters)

    def json(self) -> dict[str, Any]:
        """Return all fields as plain values for ``json.dumps``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Activity of a device between two samples.

    :ivar after: the later sample.
    :ivar interval_ns: time between the samples, in ns.
    :ivar per_second: rate of each counter, by name.
    :ivar device_share: share of the batches that ran on the device, 0 to 1.
    :ivar error_ratio: total error of the predictions, as a share of the total time taken.
    :ivar core_busy_share: share of the time of all cores that was busy, 0 to 1.
    :ivar counters: differences of the counters.
    :ivar requests_per_second: commands, reads and writes, per second.
    """

    after: DeviceSample
    interval_ns: int
    per_second: Mapping[str, float]
    device_share: float | None
    error_ratio: float | None
    core_busy_share: float
    counters: DeviceCounters
    requests_per_second: float

    def json(self) -> dict[str, Any]:
        """Return all fields as plain values for ``json.dumps``."""
        return asdict(self)


def device_rates(before: DeviceSample, after: DeviceSample) -> DeviceRates:
    """Return the activity between two samples of one device.

    :raises ValueError: the samples are of different devices, or in the wrong order.
    """
    if before.name != after.name:
        raise ValueError(f"samples of different devices, {before.name} and {after.name}")
    interval_ns = after.taken_ns - before.taken_ns
    if interval_ns <= 0:
        raise ValueError("the samples are in the wrong order")
    change = after.counters - before.counters
    if any(getattr(change, name) < 0 for name in DEVICE_COUNTERS):
        change = after.counters  # The device was removed and created again.
    return DeviceRates(
        after=after,
        interval_ns=interval_ns,
        per_second={n: getattr(change, n) * 1e9 / interval_ns for n in DEVICE_COUNTERS},
        device_share=change.device_share,
        error_ratio=change.error_ratio,
        # A core's time is counted before it has passed.
        core_busy_share=min(1.0, change.core_busy_ns / (after.cores * interval_ns)),
        counters=change,
        requests_per_second=(change.commands + change.reads + change.writes) * 1e9 / interval_ns,
    )


def devices_between(
    before: Iterable[DeviceSample], after: Iterable[DeviceSample]
) -> tuple[DeviceRates, ...]:
    """Return the rates of every device that is in both, in the order of *after*."""
    earlier = {sample.name: sample for sample in before}
    return tuple(device_rates(earlier[s.name], s) for s in after if s.name in earlier)


def read_devices() -> tuple[DeviceSample, ...]:
    """Sample every device that has power, ordered by name.

    A device that is removed meanwhile is left out. If csd.ko is not loaded, the result is empty.
    """
    try:
        found = devices()
    except (NotSupportedError, FileNotFoundError):
        return ()
    samples = []
    for device in found:
        try:
            if device.powered:
                samples.append(_read(device))
        except ControlError:
            if device.directory.is_dir():
                raise
    return tuple(samples)


def _read(device: Device) -> DeviceSample:
    return DeviceSample(
        name=device.name,
        taken_ns=time.monotonic_ns(),
        disk=str(device.path),
        mounts=tuple(device.mounts()),
        cores=device.read("cores"),
        counters=DeviceCounters(*(device.read(name) for name in DEVICE_COUNTERS)),
    )
