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
                hint="efuse csd attributes says which can be",
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
    _fixed("size_mib", "how large it is", "MiB", 1 << 20, 256),
    _fixed("queues", "hardware queues, not more than there are CPUs", "queues", 64, 1),
    _fixed("depth", "requests that a queue takes at once", "requests", 1024, 64),
    Attribute(
        "logical_block_size",
        Kind.FIXED,
        "least that it reads and writes",
        "bytes",
        512,
        4096,
        (512, 4096),
        512,
    ),
    _fixed("cores", "commands that compute at once", "cores", 64, 1),
    Attribute("power", Kind.STATE, "whether it is there as a disk", most=1),
    Attribute("index", Kind.STATE, "N of /dev/csdN; -1: it has no power", default=-1),
    _setting("model", "1: it takes the time of the model; 0: as fast as memory", "", 1),
    _setting("link_mib_per_s", "of the link, each way; 0: not limited", "MiB/s", _MIB_PER_S),
    _setting("link_latency_ns", "of the link, each way", "ns", _NS),
    _setting("media_mib_per_s", "of the medium; 0: not limited", "MiB/s", _MIB_PER_S),
    _setting("media_latency_ns", "of an access to the medium", "ns", _NS),
    _setting("media_units", "accesses to the medium at once", "units", 256, 1, 1),
    _setting(
        "core_percent", "time of a core for what takes the host's 100", "%", 100_000, 100, 100
    ),
    _setting("fail_every", "each so many requests one fails; 0: none", "requests", _U32),
    _setting("fail_next", "so many requests fail from now on", "requests", _U32),
    _setting("delay_ns", "each request takes so much longer", "ns", _NS),
    _setting("hold", "1: requests are held until it is 0 again", "", 1),
    _setting("forced", "where AUTO is; 0: as predicted, 1: the device, 2: the kernel", "", 2),
    _setting(
        "try_share",
        "one part of so many of the time may be lost by tries of the slower place; 0: no tries",
        "parts",
        1_000_000,
        0,
        40,
    ),
    Attribute("held", Kind.STATE, "requests that are held now", "requests"),
    _counter("link_read_bytes", "to the host over the link", "bytes"),
    _counter("link_write_bytes", "from the host over the link", "bytes"),
    _counter("media_read_bytes", "out of the medium", "bytes"),
    _counter("media_write_bytes", "into the medium", "bytes"),
    _counter("core_busy_ns", "time of the cores", "ns"),
    _counter("reads", "requests that read", "requests"),
    _counter("writes", "requests that write", "requests"),
    _counter("commands", "runs of functions over some blocks", "commands"),
    _counter(
        "chosen_device",
        "batches of blocks that the device was thought to be quicker for",
        "batches",
    ),
    _counter("chosen_kernel", "those that the kernel was thought to be quicker for", "batches"),
    _counter("chosen_policy", "of both, those that a policy has said", "batches"),
    _counter("predicted_ns", "that batches were predicted to take", "ns"),
    _counter("actual_ns", "that the same batches took", "ns"),
    _counter("error_ns", "between the two, of each", "ns"),
)

ATTRIBUTES: Mapping[str, Attribute] = {each.name: each for each in _ALL}
"""All attributes by name, in the order of the documentation."""


def attribute(name: str) -> Attribute:
    """Return the attribute with this name.

    :raises UsageError: no attribute has this name.
    """
    if name not in ATTRIBUTES:
        raise UsageError(
            f"no attribute of a device is called {name!r} (ENOENT)",
            hint="one of " + " ".join(ATTRIBUTES),
        )
    return ATTRIBUTES[name]
