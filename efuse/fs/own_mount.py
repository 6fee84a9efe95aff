# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the mount that this process has made, and unmount no other one.

A path leads to whatever is mounted there now. If the own mount is gone, this is the mount below,
for example the root of the machine. So the own mount is identified by the descriptor on which its
requests arrive, and a path is unmounted only if it leads to that mount.
"""

from __future__ import annotations

import contextlib
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
    "devices",
    "find_own",
    "is_served",
]

_CONNECTION = re.compile(r"^fuse_connection:\s*([0-9]+)$", re.MULTILINE)
# The device number of /dev/fuse, which is part of the kernel's ABI: include/linux/miscdevice.h.
_FUSE_DEVICE = os.makedev(10, 229)
_MOST_TRIED = 65536


def _connection_of(fdinfo: Path) -> int | None:
    """Return the number of the connection that a descriptor of /dev/fuse or /dev/efuse serves.

    :param fdinfo: path of the file that describes the descriptor, ``/proc/PID/fdinfo/FD``.
    :returns: None if the kernel does not show the number, as before Linux 6.17, or nothing is
        mounted with the descriptor.
    :raises OSError: the descriptor, or its process, is gone.
    """
    told = _CONNECTION.search(fdinfo.read_text())
    return int(told[1]) if told else None


def is_served(device: int) -> bool:
    """Tell whether the file system that *device* serves is mounted, and not aborted."""
    poll = select.poll()
    poll.register(device, 0)
    return not any(events & select.POLLERR for _, events in poll.poll(0))


def devices() -> frozenset[int]:
    """Return the open descriptors of /dev/fuse in this process."""
    return frozenset(fd for fd in _descriptors() if _is_device(fd))


def _descriptors() -> Iterable[int]:
    try:
        return [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    except OSError:  # /proc is not mounted, or the process has changed its user
        return range(min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MOST_TRIED))


def _is_device(fd: int) -> bool:
    try:
        seen = os.fstat(fd)
    except OSError:  # the descriptor is not open
        return False
    return stat.S_ISCHR(seen.st_mode) and seen.st_rdev == _FUSE_DEVICE


@dataclass(frozen=True)
class Before:
    """The mounts that existed before the own mount.

    :ivar numbers: unique numbers of the mounts that this process sees, see
        `efuse.control.mounts.number_at`. Empty on a kernel before 6.8.
    :ivar rows: on a kernel before 6.8, the id and the connection of each mount in mountinfo.
        Otherwise empty.
    """

    numbers: frozenset[int]
    rows: frozenset[tuple[int, int]]

    @classmethod
    def now(cls) -> Before:
        """Return the mounts that exist now.

        :raises ControlError: mountinfo cannot be read.
        """
        listed = frozenset(numbers())
        rows = () if listed else all_mounts()
        return cls(listed, frozenset((m.mount_id, m.connection) for m in rows))

    @classmethod
    def nothing(cls) -> Before:
        """Return that no mount existed, for a mount that is older than this process."""
        return cls(frozenset({0}) if numbers() else frozenset(), frozenset())


@dataclass(frozen=True)
class OwnMount:
    """A mount of this process.

    :ivar place: path on which it was mounted, without symbolic links.
    :ivar connection: number of its connection. A later connection may get the same number.
    :ivar number: unique number of the mount, which no other mount ever gets. None if the kernel is
        older than 6.8, or the mount is in another mount namespace.
    """

    place: str
    connection: int
    number: int | None

    def where(self, device: int) -> str | None:
        """Return a path that leads to this mount now, or None if there is no such path.

        :param device: descriptor that serves the mount; -1 if it was closed.
        :raises ControlError: mountinfo cannot be read.
        """
        if self.number is None:
            return self.place if self._is_at_its_place(device) else None
        if number_at(self.place) == self.number:
            return self.place
        moved = place_of(self.number)
        return moved if moved is not None and number_at(moved) == self.number else None

    def unmount(self, device: int) -> None:
        """Unmount this mount, but nothing that is mounted over it.

        :param device: descriptor that serves the mount; -1 if it was closed.
        :raises OSError: the kernel refused it (EBUSY: in use; EINVAL: not mounted any more, or
            another mount covers it).
        :raises ControlError: mountinfo cannot be read.
        """
        where = self.where(device)
        if where is None:
            raise OSError(errno.EINVAL, "it is not mounted any more", self.place)
        unmount(where)

    def detach(self, device: int) -> None:
        """Unmount this mount lazily. It does nothing if the mount is already gone.

        :param device: descriptor that serves the mount; -1 if it was closed.
        :raises OSError: the kernel refused it.
        :raises ControlError: mountinfo cannot be read.
        """
        if self.number is not None:
            detach(self.place, self.number)
        elif self._is_at_its_place(device):
            unmount(self.place, lazy=True)

    def _is_at_its_place(self, device: int) -> bool:
        """Tell whether the path leads to this connection.

        The number of the connection identifies it only while it is served.
        """
        try:
            seen = find(self.place, fuse=True)
        except ControlError:
            return False
        here = seen.mountpoint == self.place and seen.connection == self.connection
        return here and device >= 0 and is_served(device)


def find_own(device: int, place: str, before: Before) -> OwnMount | None:
    """Return the mount that *device* serves.

    :param place: path on which it was mounted, without symbolic links.
    :param before: the mounts that existed before it.
    :returns: None if this process does not see the mount, or cannot tell it from another new FUSE
        mount at the same place.
    :raises MountError: the mount is already unmounted or aborted.
    :raises ControlError: mountinfo cannot be read.
    """
    told = None
    with contextlib.suppress(OSError):  # /proc is not mounted, or the process has changed its user
        told = _connection_of(Path(f"/proc/self/fdinfo/{device}"))
    new = _new(before)
    if told is None:
        here = {(m.mount_id, m.connection) for m in all_mounts() if m.mountpoint == place}
        new = [m for m in new if (m.mount_id, m.connection) in here]
    else:
        new = [m for m in new if m.connection == told]
    # Checked last: if the connection is served now, no other one had its number until now.
    if not is_served(device):
        raise MountError(
            f"{place} cannot be served: it was unmounted, or aborted, as soon as it was mounted"
            " (ENOTCONN)",
            hint="find the program that unmounts it, and mount it again",
        )
    connections = {m.connection for m in new}
    if len(connections) != 1:
        return OwnMount(place, told, None) if told is not None else None
    known = [m.number for m in new if m.number]
    # The lowest number is the mount itself. Propagation and bind mounts make copies later.
    return OwnMount(place, connections.pop(), min(known, default=None))


def _new(before: Before) -> list[Numbered]:
    """Return the FUSE and eFuse mounts that were made since *before*.

    Their unique number is 0 on a kernel before 6.8.
    """
    if before.numbers:
        seen = (numbered(number) for number in numbers() if number not in before.numbers)
        return [m for m in seen if m is not None and m.is_of_fuse]
    return [
        Numbered(0, m.mount_id, m.connection, m.fstype.partition(".")[0])
        for m in all_mounts()
        if (m.is_fuse or m.is_efuse) and (m.mount_id, m.connection) not in before.rows
    ]
