# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a successor asks for: the mount of its predecessor takes the place of the one that it makes.

All of this runs in a process that was made for one system call, see `efuse.supervisor.answering`.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from efuse.control import Connection
from efuse.control.daemon_locks import DaemonLock, is_locked
from efuse.control.daemons import connection_of
from efuse.control.mounts import number_at
from efuse.control.takeover import take_over as take_over_by
from efuse.errors import ControlError
from efuse.supervisor import reports
from efuse.supervisor.asking import Asked
from efuse.supervisor.caller import Caller
from efuse.supervisor.detached import DetachedMount
from efuse.supervisor.swapping import Swap

__all__ = ["Known", "device_of", "known_at", "take_over", "unmount"]

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Known:
    """A mount of the daemon, or of its predecessors.

    :ivar connection: number of its connection.
    :ivar number: unique number of the mount; 0 if it is not known.
    :ivar asked: the options that it has; None if they are not known.
    """

    connection: int
    number: int
    asked: Asked | None

    @property
    def is_being_replaced(self) -> bool:
        """Whether another process replaces its daemon."""
        try:
            return is_locked(Connection(self.connection), DaemonLock.REPLACING)
        except ControlError:  # it has ended
            return False


def known_at(where: int, mounts: Iterable[Known]) -> Known | None:
    """Return the mount whose root a descriptor is open on, if it is one of *mounts*.

    No file system is asked. Several of *mounts* may have had the same connection, one after the
    other.

    :param where: the descriptor, open with O_PATH.
    """
    seen = DetachedMount(where)
    connection = seen.connection
    if not seen.is_root:
        return None
    number = number_at(directory=where)  # None: only its user may ask
    for known in mounts:
        is_the_same = not known.number or number in (None, known.number)
        if known.connection == connection and is_the_same:
            return known
    return None


def take_over(known: Known, swap: Swap, where: int) -> tuple[reports.TakenOver, int, int]:
    """Let the new descriptor of a caller take over a mount; return the report, with descriptors.

    :param where: descriptor of the mount's root.
    :raises OSError: the kernel refused it.
    """
    if not swap.has_room:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    take_over_by(swap.ours, where)
    return reports.TakenOver(known.connection, swap.places), swap.ours, swap.before


def device_of(caller: Caller, connection: int, number: int) -> int:
    """Return a caller's descriptor of a connection that it has made.

    :param number: number of /dev/efuse, as in ``st_rdev``.
    :raises OSError: EBADF: the caller has no such descriptor.
    """
    for fd in caller.devices(number):
        if connection_of(caller.proc / "fd" / str(fd)) == connection:
            return fd
    raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def unmount(where: int, flags: int) -> None:
    """Unmount the mount whose root a descriptor is open on, and close it.

    :param flags: of umount2(2).
    :raises OSError: the kernel refused it.
    """
    path = Path(f"/proc/self/fd/{where}").readlink()
    os.close(where)  # it keeps the mount busy
    if _libc.umount2(os.fsencode(path), ctypes.c_int(flags)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
