# SPDX-License-Identifier: LGPL-2.1-or-later
"""What calls that ran at the same time may have returned: the checker of random schedules.

Moments are numbers: each event of a run has a later one than the event before. A change has up to
three moments: its call starts, the daemon applies it, and its call ends. A change that the daemon
makes itself ends when the kernel has taken the notification.

A read that starts after a change has ended must not show anything older. A read that overlaps a
change may show the file before or after it. Each byte is checked by itself, because no file system
promises that a read shows all of a write or nothing.

While a change is under way, a call may see the new value and a later call the old one again. Plain
FUSE does so, too:

* A buffered write puts the bytes into the page first. A direct read then gets the old bytes from
  the daemon. The page may also be dropped, and read again before the WRITE is handled. After a
  direct WRITE was handled, the page has the old bytes until the WRITE is answered.
* GETATTR returns the attributes of its reply. They are not kept if the size of the file is
  changing, or if another reply came since GETATTR was sent. The next stat(2) then shows what is
  kept.
* A listing comes from the daemon, while a dentry or a negative dentry is valid for a time.

Extended attributes are the exception. FUSE keeps none: each call asks the daemon. eFuse knows of a
change that a caller makes, and asks the daemon as well until the change has ended. So a call that
has seen the new value hides the old one from calls that start later (`Register.see`). A change that
the daemon makes by itself is known to eFuse only by the notification.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar

T = TypeVar("T")

FOREVER = 1 << 62
"""A moment after all others, and the end of a range that has none."""


class ViolationError(AssertionError):
    """A call returned what no order of the changes allows."""


@dataclass
class Change:
    """A change of a range of bytes to one value.

    :ivar low: first byte of the range.
    :ivar high: end of the range.
    :ivar value: what each byte becomes; 0 if the file was cut off at *low*.
    :ivar started: moment at which the call started.
    :ivar applied: moment at which the daemon applied it, or None if that is not known, because the
        kernel wrote to a backing file or because the bytes were stored through a map.
    :ivar ended: moment at which the call had returned.
    """

    low: int
    high: int
    value: int
    started: int
    applied: int | None = None
    ended: int = FOREVER

    def precedes(self, other: Change) -> bool:
        """Return whether this change certainly came before the other one."""
        if self.applied is not None and other.applied is not None:
            return self.applied < other.applied
        return self.ended < other.started

    def __str__(self) -> str:
        high = "" if self.high == FOREVER else f"{self.high:#x}"
        applied = "?" if self.applied is None else self.applied
        ended = "" if self.ended == FOREVER else self.ended
        return f"{self.value} in {self.low:#x}..{high} at {self.started}/{applied}/{ended}"


class Bytes:
    """The changes of a file's bytes. Bytes behind the end of the file are zeros.

    :param size: size of the file at the start.
    :param value: value of its bytes at the start.
    """

    def __init__(self, size: int, value: int) -> None:
        self.changes = [Change(0, size, value, -1, -1, -1), Change(size, FOREVER, 0, -1, -1, -1)]

    def add(self, change: Change) -> Change:
        self.changes.append(change)
        return change

    def check(self, at: int, data: bytes, started: int, ended: int) -> None:
        """Check what a read from the offset *at* returned.

        :param started: moment at which the read started.
        :param ended: moment at which it had returned.
        :raises ViolationError: a byte is older than it may be, or was never written there.
        """
        end = at + len(data)
        edges = {e for c in self.changes for e in (c.low, c.high) if at < e < end}
        bounds = [at, *sorted(edges), end]
        for low, high in pairwise(bounds):
            part = data[low - at : high - at]
            # All bytes of the part have the same changes: one byte of each value is enough.
            for value in sorted(set(part)):
                self._check_byte(low + part.index(value), value, started, ended)

    def _check_byte(self, place: int, value: int, started: int, ended: int) -> None:
        here = [c for c in self.changes if c.low <= place < c.high and c.started < ended]
        over = [c for c in here if c.ended < started]
        for change in here:
            if change.value == value and not (
                change.ended < started and any(change.precedes(later) for later in over)
            ):
                return
        known = "; ".join(map(str, here))
        raise ViolationError(
            f"byte {place:#x} is {value} in a read from {started} to {ended}; changes: {known}"
        )


@dataclass
class Version(Generic[T]):
    """One value of a register.

    :ivar value: the value.
    :ivar applied: moment at which the daemon set it.
    :ivar ended: moment at which the call that set it had returned.
    :ivar seen: moment at which a call had returned that has seen it; later calls see nothing older.
    """

    value: T
    applied: int
    ended: int = FOREVER
    seen: int = FOREVER


@dataclass
class Register(Generic[T]):
    """A value that only the daemon changes, such as a file's mode or the inode that a name has."""

    versions: list[Version[T]] = field(default_factory=list)

    @property
    def value(self) -> T:
        """The present value."""
        return self.versions[-1].value

    def set(self, value: T, applied: int) -> Version[T]:
        """Add a version, whose `ended` is set when its call has returned."""
        version = Version(value, applied)
        self.versions.append(version)
        return version

    def allowed(self, started: int, ended: int) -> list[T]:
        """Return the values that a call from *started* to *ended* may have seen."""
        over = [n for n, v in enumerate(self.versions) if min(v.ended, v.seen) < started]
        first = over[-1] if over else 0
        return [v.value for v in self.versions[first:] if v.applied < ended]

    def see(self, value: T, ended: int) -> None:
        """Note that a call which returned at the moment *ended* has seen a value.

        It hides older values from later calls, if it is clear which version was seen.
        """
        versions = [version for version in self.versions if version.value == value]
        if len(versions) == 1:
            versions[0].seen = min(versions[0].seen, ended)

    def check(self, what: str, value: T, started: int, ended: int) -> None:
        """Check what a call from *started* to *ended* has seen.

        :raises ViolationError: the value is older than it may be, or the register never had it.
        """
        allowed = self.allowed(started, ended)
        if value not in allowed:
            raise ViolationError(
                f"{what} is {value} for a call from {started} to {ended}, not one of {allowed}"
            )
