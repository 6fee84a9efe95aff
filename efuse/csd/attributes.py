# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files of a device's directory in configfs: what each holds and which values it accepts."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from efuse.errors import UsageError

__all__ = ["ATTRIBUTES", "Attribute", "Kind", "attribute"]

_MIB_PER_S = 1 << 24
_NS = 60 * 10**9
_U32 = (1 << 32) - 1


class Kind(enum.Enum):
    """What can be done with an attribute."""

    FIXED = "fixed"
    """Can be set only while the device is powered off."""
    SETTING = "setting"
    """Can be set at any time."""
    STATE = "state"
    """Reports the state of the device."""
    COUNTER = "counter"
    """Counts from the creation of the device."""


@dataclass(frozen=True)
class Attribute:
    """A file of a device's directory.

    :ivar name: name of the file.
    :ivar kind: whether and when the attribute can be set.
    :ivar doc: description in a few words.
    :ivar unit: unit of the number in the file; empty: none.
    :ivar least: smallest number that can be written.
    :ivar most: largest number that can be written; None: the file is read-only.
    :ivar values: the only numbers that can be written; empty: all from `least` to `most`.
    :ivar default: value of a new device.
    """

    name: str
    kind: Kind
    doc: str
    unit: str = ""
    least: int = 0
    most: int | None = None
    values: tuple[int, ...] = ()
    default: int = 0

    @property
    def writable(self) -> bool:
        """Whether the attribute can be written."""
        return self.most is not None

    @property
    def range(self) -> str:
        """The numbers that can be written, in words; empty: none."""
        if self.values:
            return " or ".join(map(str, self.values))
        return f"{self.least} to {self.most}" if self.writable else ""

    def parse(self, text: str) -> int:
        """Convert the text that a person typed to a number.

        :raises UsageError: the attribute is read-only, or does not accept this value.
        """
        if not self.writable:
            raise UsageError(
                f"{self.name} cannot be set: it is a {self.kind.value} of the device (EACCES)",
                hint="efuse csd attributes lists those that can be set",
            )
        good = text.isascii() and text.isdecimal() and self._takes(int(text))
        if not good:
            raise UsageError(
                f"{self.name} cannot be {text!r} (EINVAL)",
                hint=f"it takes {self.range}{f' {self.unit}' if self.unit else ''}",
            )
        return int(text)

    def _takes(self, number: int) -> bool:
        if self.values:
            return number in self.values
        return self.most is not None and self.least <= number <= self.most


def _fixed(name: str, doc: str, unit: str, most: int, default: int) -> Attribute:
    return Attribute(name, Kind.FIXED, doc, unit, 1, most, default=default)


def _setting(
    name: str, doc: str, unit: str, most: int, least: int = 0, default: int = 0
) -> Attribute:
    return Attribute(name, Kind.SETTING, doc, unit, least, most, default=default)


def _counter(name: str, doc: str, unit: str) -> Attribute:
    return Attribute(name, Kind.COUNTER, doc, unit)


_ALL = (
    _fixed("size_mib", "size of the device", "MiB", 1 << 20, 256),
    _fixed("queues", "hardware queues, at most as many as CPUs", "queues", 64, 1),
    _fixed("depth", "requests that a queue holds at the same time", "requests", 1024, 64),
    Attribute(
        "logical_block_size",
        Kind.FIXED,
        "smallest unit of reads and writes",
        "bytes",
        512,
        4096,
        (512, 4096),
        512,
    ),
    _fixed("cores", "commands that compute at the same time", "cores", 64, 1),
    Attribute("power", Kind.STATE, "whether the device exists as a disk", most=1),
    Attribute("index", Kind.STATE, "N of /dev/csdN; -1: the device has no power", default=-1),
    _setting("model", "1: requests take as long as in the model; 0: as in memory", "", 1),
    _setting(
        "link_mib_per_s",
        "bandwidth of the link, each way; 0: not limited",
        "MiB/s",
        _MIB_PER_S,
    ),
    _setting("link_latency_ns", "latency of the link, each way", "ns", _NS),
    _setting("media_mib_per_s", "bandwidth of the medium; 0: not limited", "MiB/s", _MIB_PER_S),
    _setting("media_latency_ns", "latency of an access to the medium", "ns", _NS),
    _setting("media_units", "accesses to the medium at the same time", "units", 256, 1, 1),
    _setting(
        "core_percent",
        "time that a core needs, in percent of the host's time",
        "%",
        100_000,
        100,
        100,
    ),
    _setting("fail_every", "one request in so many fails; 0: none", "requests", _U32),
    _setting("fail_next", "number of the next requests that fail", "requests", _U32),
    _setting("delay_ns", "delay added to each request", "ns", _NS),
    _setting("hold", "1: requests are held until this is 0 again", "", 1),
    _setting(
        "forced", "place that AUTO chooses; 0: as predicted, 1: the device, 2: the kernel", "", 2
    ),
    _setting(
        "try_share",
        "one part in so many of the time may go to tries of the slower place; 0: no tries",
        "parts",
        1_000_000,
        0,
        40,
    ),
    Attribute("held", Kind.STATE, "requests held now", "requests"),
    _counter("link_read_bytes", "sent to the host over the link", "bytes"),
    _counter("link_write_bytes", "received from the host over the link", "bytes"),
    _counter("media_read_bytes", "read from the medium", "bytes"),
    _counter("media_write_bytes", "written to the medium", "bytes"),
    _counter("core_busy_ns", "busy time of the cores", "ns"),
    _counter("reads", "requests that read", "requests"),
    _counter("writes", "requests that write", "requests"),
    _counter("commands", "runs of functions over some blocks", "commands"),
    _counter(
        "chosen_device",
        "batches of blocks that were predicted to be faster at the device",
        "batches",
    ),
    _counter(
        "chosen_kernel",
        "batches of blocks that were predicted to be faster in the kernel",
        "batches",
    ),
    _counter("chosen_policy", "batches of blocks whose place a policy has chosen", "batches"),
    _counter("predicted_ns", "time that batches were predicted to take", "ns"),
    _counter("actual_ns", "time that the same batches took", "ns"),
    _counter("error_ns", "total of the differences between predicted and actual time", "ns"),
)

ATTRIBUTES: Mapping[str, Attribute] = {each.name: each for each in _ALL}
"""All attributes by name, in the order of the documentation."""


def attribute(name: str) -> Attribute:
    """Return the attribute with this name.

    :raises UsageError: no attribute has this name.
    """
    if name not in ATTRIBUTES:
        raise UsageError(
            f"a device has no attribute {name!r} (ENOENT)",
            hint="one of " + " ".join(ATTRIBUTES),
        )
    return ATTRIBUTES[name]
