# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mount that this process has made, told from every other one.

A path leads to the mount that is there now. If the own mount has gone, that is the mount below: the
machine's root, for example. So the own mount is found by the descriptor on which its requests
arrive, and is unmounted only where the path leads to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import resource
import select
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from efuse.control.mounts import (
    Numbered,
    all_mounts,
    find,
    number_at,
    numbered,
    numbers,
    place_of,
)
from efuse.errors import ControlError, MountError
from efuse.fs.mountpoint import detach, unmount

__all__ = [
    "Before",
    "OwnMount",
    "connection_of",
    "devices",
    "find_own",
    "is_served",
    "is_served_by",
]

_CONNECTION = re.compile(r"^fuse_connection:\s*([0-9]+)$", re.MULTILINE)
# The number of /dev/fuse is the kernel's ABI: include/linux/miscdevice.h.
_FUSE_DEVICE = os.makedev(10, 229)
_MOST_TRIED = 65536
_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


def connection_of(fdinfo: Path) -> int | None:
    """Return the number of the connection whose device is open.

    :param fdinfo: the file that describes the descriptor, ``/proc/PID/fdinfo/FD``.
    :returns: None if the kernel does not tell it: Linux before 6.17, or nothing is mounted by it.
    :raises OSError: the descriptor, or its process, has gone.
    """
    told = _CONNECTION.search(fdinfo.read_text())
    return int(told[1]) if told else None


def is_served(device: int) -> bool:
    """Return whether the file system that is served by *device* is mounted, and not aborted."""
    poll = select.poll()
    poll.register(device, 0)
    return not any(events & select.POLLERR for _, events in poll.poll(0))


def is_served_by(pid: int, fd: int) -> bool:
    """Return whether the descriptor *fd* of another process serves a file system.

    A process may have the descriptor of a connection that has ended, whose number is another one's.

    :returns: True also where it cannot be told.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        copy = _libc.syscall(ctypes.c_long(_PIDFD_GETFD), process, fd, 0)
    finally:
        os.close(process)
    if copy < 0:
        return True
    try:
        return is_served(copy)
    finally:
        os.close(copy)


def devices() -> frozenset[int]:
    """Return the descriptors of /dev/fuse that this process has open."""
    return frozenset(fd for fd in _descriptors() if _is_device(fd))


def _descriptors() -> Iterable[int]:
    try:
        return [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    except OSError:  # no proc, or the process has changed its user
        return range(min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MOST_TRIED))


def _is_device(fd: int) -> bool:
    try:
        seen = os.fstat(fd)
    except OSError:  # not open, or not any more
        return False
    return stat.S_ISCHR(seen.st_mode) and seen.st_rdev == _FUSE_DEVICE


@dataclass(frozen=True)
class Before:
    """What was mounted before the own mount.

    :ivar numbers: of the mounts that this process sees; see `efuse.control.mounts.number_at`. Empty
        on a kernel before 6.8.
    :ivar rows: there, the numbers of the mounts and of their connections in mountinfo.
    """

    numbers: frozenset[int]
    rows: frozenset[tuple[int, int]]

    @classmethod
    def now(cls) -> Before:
        """Look at what is mounted now.

        :raises ControlError: mountinfo cannot be read.
        """
        listed = frozenset(numbers())
        rows = () if listed else all_mounts()
        return cls(listed, frozenset((m.mount_id, m.connection) for m in rows))


@dataclass(frozen=True)
class OwnMount:
    """A mount of this process.

    :ivar place: where it was mounted, without symbolic links.
    :ivar connection: the number of its connection, which is given to another one after the end.
    :ivar number: the number of the mount, which no other mount ever gets. None: the kernel is older
        than 6.8, or the mount is in another mount namespace.
    """

    place: str
    connection: int
    number: int | None

    def where(self, device: int) -> str | None:
        """Return a path that leads to this mount now, None if there is none.

        :param device: the descriptor that serves it, -1 if it was closed.
        :raises ControlError: mountinfo cannot be read.
        """
        if self.number is None:
            return self.place if self._is_at_its_place(device) else None
        if number_at(self.place) == self.number:
            return self.place
        moved = place_of(self.number)
        return moved if moved is not None and number_at(moved) == self.number else None

    def unmount(self, device: int) -> None:
        """Unmount this very mount, but nothing that is mounted over it.

        :param device: the descriptor that serves it, -1 if it was closed.
        :raises OSError: the kernel refused it (EBUSY: in use; EINVAL: it is not mounted any more).
        :raises ControlError: mountinfo cannot be read.
        """
        where = self.where(device)
        if where is None:
            raise OSError(errno.EINVAL, "it is not mounted any more", self.place)
        unmount(where)

    def detach(self, device: int) -> None:
        """Unmount this very mount lazily.

        :param device: the descriptor that serves it, -1 if it was closed.
        :raises OSError: the kernel refused it.
        :raises ControlError: mountinfo cannot be read.
        """
        if self.number is not None:
            detach(self.place, self.number)
        elif self._is_at_its_place(device):
            unmount(self.place, lazy=True)

    def _is_at_its_place(self, device: int) -> bool:
        """Return whether the path leads to the connection, whose number is its own while served."""
        try:
            seen = find(self.place, fuse=True)
        except ControlError:
            return False
        here = seen.mountpoint == self.place and seen.connection == self.connection
        return here and device >= 0 and is_served(device)


def find_own(device: int, place: str, before: Before) -> OwnMount | None:
    """Return the mount that is served by *device*.

    :param place: where it was mounted, without symbolic links.
    :param before: what was mounted before it.
    :returns: None if this process does not see it, or cannot tell it from another new mount of FUSE
        at the same place.
    :raises MountError: it was unmounted already, or aborted.
    :raises ControlError: mountinfo cannot be read.
    """
    told = None
    with contextlib.suppress(OSError):  # no proc, or the process has changed its user
        told = connection_of(Path(f"/proc/self/fdinfo/{device}"))
    new = _new(before)
    if told is None:
        here = {(m.mount_id, m.connection) for m in all_mounts() if m.mountpoint == place}
        new = [m for m in new if (m.mount_id, m.connection) in here]
    else:
        new = [m for m in new if m.connection == told]
    # After the look: a number that its connection had then is not yet another one's.
    if not is_served(device):
        raise MountError(
            f"{place} cannot be served: it was unmounted, or aborted, as soon as it was mounted"
            " (ENOTCONN)",
            hint="look for what unmounts it, and mount it again",
        )
    connections = {m.connection for m in new}
    if len(connections) != 1:
        return OwnMount(place, told, None) if told is not None else None
    known = [m.number for m in new if m.number]
    # Copies of a mount, in a shared or a bound directory, are made after it.
    return OwnMount(place, connections.pop(), min(known, default=None))


def _new(before: Before) -> list[Numbered]:
    """Return the mounts of FUSE that were made since; number 0 on a kernel before 6.8."""
    if before.numbers:
        seen = (numbered(number) for number in numbers() if number not in before.numbers)
        return [m for m in seen if m is not None and m.is_of_fuse]
    return [
        Numbered(0, m.mount_id, m.connection, m.fstype.partition(".")[0])
        for m in all_mounts()
        if (m.is_fuse or m.is_efuse) and (m.mount_id, m.connection) not in before.rows
    ]
