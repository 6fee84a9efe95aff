# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tells whether two descriptors lead to one inode, where numbers do not tell: by inotify(7)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os

__all__ = ["Watches"]

_libc = ctypes.CDLL(None, use_errno=True)
_IN_DELETE_SELF = 0x400


class Watches:
    """Watches of inodes. What happens to them is of no interest, only which watch an inode has.

    The kernel has one watch for an inode, however it is reached and whatever its number becomes. No
    other inode gets the number of a watch again.
    """

    def __init__(self) -> None:
        self._fd = -1

    def add(self, fd: int) -> int:
        """Return the number of the watch of the inode that *fd* (it may be O_PATH) leads to.

        :raises OSError: ENOSPC or EMFILE: the user has no more watches (fs.inotify of sysctl(8));
            EACCES: the file cannot be read.
        """
        if self._fd < 0:
            self._fd = _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        path = b"/proc/self/fd/%d" % fd
        return _check(_libc.inotify_add_watch(self._fd, path, ctypes.c_uint32(_IN_DELETE_SELF)))

    def remove(self, watch: int) -> None:
        """Give the watch back; its inode may be gone."""
        if _libc.inotify_rm_watch(self._fd, watch) != 0 and ctypes.get_errno() != errno.EINVAL:
            _check(-1)
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 1 << 16)  # that it is gone is told as well, and would be kept

    def close(self) -> None:
        """Give all watches back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
