# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tell by inotify(7) whether two descriptors lead to one inode, if inode numbers do not tell."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os

__all__ = ["Watches"]

_libc = ctypes.CDLL(None, use_errno=True)
_IN_DELETE_SELF = 0x400


class Watches:
    """Watches of inodes, which serve as identities of the inodes. Their events are not used.

    An inotify instance has one watch for an inode, by whatever path it is reached, and even if its
    inode number changes. The number of a watch is not used again for another inode.
    """

    def __init__(self) -> None:
        self._fd = -1

    def add(self, fd: int) -> int:
        """Watch an inode, and return the number of its watch.

        :param fd: descriptor of the inode; may be an O_PATH descriptor.
        :raises OSError: ENOSPC or EMFILE: the user has no more watches (fs.inotify of sysctl(8)).
            EACCES: the file cannot be read.
        """
        if self._fd < 0:
            self._fd = _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        path = b"/proc/self/fd/%d" % fd
        return _check(_libc.inotify_add_watch(self._fd, path, ctypes.c_uint32(_IN_DELETE_SELF)))

    def remove(self, watch: int) -> None:
        """Remove a watch. Its inode may already be gone."""
        if _libc.inotify_rm_watch(self._fd, watch) != 0 and ctypes.get_errno() != errno.EINVAL:
            _check(-1)
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 1 << 16)  # the removal is an event, too, which would stay queued

    def close(self) -> None:
        """Remove all watches."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
