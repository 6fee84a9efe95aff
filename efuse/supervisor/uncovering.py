# SPDX-License-Identifier: LGPL-2.1-or-later
"""Start a successor where the mounts that it is to take over do not hide their mount points.

A daemon looks at its mount point before it mounts. There is a mount whose daemon has died, and the
look would wait for the successor, which is this daemon. So a successor has a mount namespace of its
own, a copy of the supervisor's without these mounts. It also finds there what was at the mount
point before, which it may have to serve.

Further changes of the supervisor's namespace reach the copy as far as mounts are shared, see
mount_namespaces(7). Nothing that happens in the copy reaches the supervisor's namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Collection
from pathlib import Path

from efuse.control.mounts import mounts
from efuse.supervisor.detached import DetachedMount

__all__ = ["namespace_of", "uncover"]

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_SLAVE = 1 << 14, 1 << 19
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8


def uncover(connections: Collection[int]) -> None:
    """Give this process a mount namespace of its own, without the mounts of some connections.

    :param connections: numbers of the connections.
    :raises OSError: the kernel refused it.
    :raises ControlError: mountinfo cannot be read.
    """
    _checked(_libc.unshare(ctypes.c_int(_CLONE_NEWNS)))
    _checked(_libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None))
    tried: set[int] = set()
    # The first is the outermost: the way to the others may lead through it, and they go with it.
    while left := [
        mount
        for mount in mounts(fuse=True)
        if mount.connection in connections and mount.mount_id not in tried
    ]:
        tried.add(left[0].mount_id)
        path = left[0].mountpoint
        with contextlib.suppress(FileNotFoundError):
            if _leads_to(path, left[0].connection):
                flags = ctypes.c_int(_MNT_DETACH | _UMOUNT_NOFOLLOW)
                _checked(_libc.umount2(os.fsencode(path), flags))


def namespace_of(process: int | str) -> str:
    """Return the name of the mount namespace of a process.

    :raises OSError: the process is gone.
    """
    return str(Path(f"/proc/{process}/ns/mnt").readlink())


def _leads_to(path: str, connection: int) -> bool:
    """Tell whether a path leads to a mount of a connection, and not to one that covers it."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return DetachedMount(fd).connection == connection
    finally:
        os.close(fd)


def _checked(done: int) -> None:
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
