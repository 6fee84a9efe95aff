# SPDX-License-Identifier: LGPL-2.1-or-later
"""What emulated storage devices (``csd.ko``) did: samples of their counters, and rates."""

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
    """The counters of a device, as its files in configfs are named.

    `efuse.csd.ATTRIBUTES` says what each counts, and in which unit.
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
        """Share of the batches that were sent to the device, 0 to 1; None if none was chosen."""
        chosen = self.chosen_device + self.chosen_kernel
        return self.chosen_device / chosen if chosen else None

    @property
    def error_ratio(self) -> float | None:
        """How far predictions were off, on the whole, as a share of the time that it took."""
        return self.error_ns / self.actual_ns if self.actual_ns else None


DEVICE_COUNTERS = tuple(f.name for f in fields(DeviceCounters))
"""Names of a device's counters, which are the names of its files in configfs."""


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One device that has power, and its counters since it was made.

    :ivar name: of its directory in configfs.
    :ivar taken_ns: when, by CLOCK_MONOTONIC.
    :ivar disk: path of the block device.
    :ivar mounts: where that is mounted, as far as this task sees it.
    :ivar cores: commands that compute at once.
    """

    name: str
    taken_ns: int
    disk: str
    mounts: tuple[str, ...] = ()
    cores: int = 1
    counters: DeviceCounters = field(default_factory=DeviceCounters)

    def json(self) -> dict[str, Any]:
        """Return the same fields as plain values for ``json.dumps``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """What happened at a device between two samples; ``after`` is the later one.

    :ivar per_second: of each counter, by its name.
    :ivar device_share: of the batches, those that were sent to the device, 0 to 1.
    :ivar error_ratio: how far predictions were off, as a share of the time that it took.
    :ivar core_busy_share: of the time of all cores, 0 to 1.
    :ivar counters: the differences.
    :ivar requests_per_second: commands, reads and writes.
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
        """Return the same fields as plain values for ``json.dumps``."""
        return asdict(self)


def device_rates(before: DeviceSample, after: DeviceSample) -> DeviceRates:
    """Return what happened between two samples of one device.

    :raises ValueError: the samples are of different devices or in the wrong order.
    """
    if before.name != after.name:
        raise ValueError(f"samples of devices {before.name} and {after.name}")
    interval_ns = after.taken_ns - before.taken_ns
    if interval_ns <= 0:
        raise ValueError("the later sample comes first")
    change = after.counters - before.counters
    if any(getattr(change, name) < 0 for name in DEVICE_COUNTERS):
        change = after.counters  # It was removed and made anew meanwhile.
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
    """Return the rates of every device that both hold, in the order of *after*."""
    earlier = {sample.name: sample for sample in before}
    return tuple(device_rates(earlier[s.name], s) for s in after if s.name in earlier)


def read_devices() -> tuple[DeviceSample, ...]:
    """Read every device that has power, by name; one that goes meanwhile is left out.

    Where csd.ko is not loaded there is none.
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
