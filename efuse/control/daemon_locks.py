# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks that tell which process attends to the daemon of a mount.

A lock is one of flock(2) on a file of the connection in sysfs that only root can open. So no other
user can have one, and it ends with its holder and with the connection.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
from pathlib import Path

from efuse.control.connection import Connection
from efuse.errors import ControlError, reason

__all__ = ["DaemonLock", "holder_of", "is_locked", "locked"]


class DaemonLock(enum.Enum):
    """What the holder does with the daemon. The value is the file that is locked."""

    RESTARTING = "invalidate"
    """It starts the daemon again when it has ended, and answers its calls of umount(2)."""

    REPLACING = "abort"
    """It replaces the daemon by another one. No other process starts a daemon meanwhile."""


def locked(connection: Connection, lock: DaemonLock) -> int:
    """Lock a connection, and return a descriptor that holds the lock until it is closed.

    :raises ControlError: another process has the lock (EBUSY); this process is not root; or the
        connection no longer exists.
    """
    try:
        fd = _locked(connection, lock, fcntl.LOCK_EX)
    except OSError as error:
        raise ControlError(
            f"the daemon of connection {connection.id} cannot be attended to: {reason(error)}",
            hint="run it as root" if error.errno in (errno.EACCES, errno.EPERM) else None,
        ) from error
    if fd < 0:
        raise ControlError(
            f"the daemon of connection {connection.id} cannot be attended to: another process does"
            " that (EBUSY)",
            hint="wait until the other `efuse takeover` or `efuse run --restart` has ended",
        )
    return fd


def is_locked(connection: Connection, lock: DaemonLock) -> bool:
    """Tell whether a process has a lock; False also if this process may not know."""
    try:
        fd = _locked(connection, lock, fcntl.LOCK_SH)
    except OSError:  # it is not root, or the connection has ended
        return False
    if fd < 0:
        return True
    os.close(fd)
    return False


def holder_of(
    connection: Connection, lock: DaemonLock, *, locks: Path = Path("/proc/locks")
) -> int:
    """Return the id of the process that has a lock; 0 if there is none, or it is not visible.

    By contrast to `is_locked`, this takes no lock itself, not even for a moment. So another process
    can be asked about as often as wanted, without keeping it from its lock.
    """
    try:
        seen = (connection.path / lock.value).stat()
        lines = locks.read_text().splitlines()
    except OSError:  # the connection has ended
        return 0
    file = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}:{seen.st_ino}"
    for words in map(str.split, lines):
        # A line with an arrow is of a process that waits.
        if words[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and words[5] == file:
            return max(0, int(words[4]))
    return 0


def _locked(connection: Connection, lock: DaemonLock, how: int) -> int:
    """Return a descriptor that holds the lock; -1 if another one holds it."""
    fd = os.open(connection.path / lock.value, os.O_WRONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return -1
    except BaseException:
        os.close(fd)
        raise
    return fd
