# SPDX-License-Identifier: LGPL-2.1-or-later
"""Would a mount hide from the supervisor what it looks at?

It would then wait for the daemon, which may itself wait for the supervisor. A mount at another
path, or in another mount namespace, hides something, too, if the kernel propagates it: see
mount_namespaces(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
import sys
from pathlib import Path

from efuse.control.mounts import MOUNTINFO, all_mounts

__all__ = ["Needed"]

# What this process may look at later, in addition to /proc.
_DIRECTORIES = (
    sys.prefix,
    sys.base_prefix,
    str(Path(os.__file__).parent),
    str(Path(__file__).parent),
)
_NEEDED = ("/dev/efuse", "/sys/fs/efuse", *_DIRECTORIES, *map(os.path.realpath, _DIRECTORIES))
_PROC = "/proc"
_MOUNT_ID = re.compile(r"^mnt_id:\s*([0-9]+)$", re.MULTILINE)
_libc = ctypes.CDLL(None, use_errno=True)
_AT_EMPTY_PATH, _AT_STATX_DONT_SYNC = 0x1000, 0x4000


class Needed:
    """Paths that this process needs.

    :param paths: the paths, without symbolic links.
    """

    def __init__(self, paths: tuple[str, ...] = _NEEDED) -> None:
        self._paths = paths
        # No mount of the daemon is there yet, so looking at them does not last.
        self._proc = _identity_at(_PROC)[1]
        self._on_the_way: dict[tuple[int, int], str] = {}
        for path in paths:
            for directory in (Path(path), *Path(path).parents):
                with contextlib.suppress(OSError):
                    self._on_the_way.setdefault(_identity_at(str(directory)), path)

    def hidden_by(self, where: int, path: str, thread: int, *, shared: bool) -> str:
        """Return a path that a mount would hide, or nothing.

        :param where: descriptor of what is mounted on.
        :param path: its path.
        :param thread: id of the thread that mounts.
        :param shared: whether that thread has the mount namespace of this process.
        :raises OSError: the thread is gone.
        :raises ControlError: the thread is gone.
        """
        if shared and (hidden := self._hidden_at(path)):
            return hidden
        found = _identity(where)
        hidden = _PROC if found[1] == self._proc else self._on_the_way.get(found, "")
        return hidden if hidden and _is_propagated(where, thread) else ""

    def _hidden_at(self, path: str) -> str:
        if re.match(r"/proc(/|$)", path):
            return _PROC
        return next((needed for needed in self._paths if f"{needed}/".startswith(f"{path}/")), "")


def _identity_at(path: str) -> tuple[int, int]:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return _identity(fd)
    finally:
        os.close(fd)


def _identity(fd: int) -> tuple[int, int]:
    """Return the inode and the device that a descriptor is open on. No file system is asked."""
    found, none = ctypes.create_string_buffer(256), ctypes.c_uint(0)
    if _libc.statx(fd, b"", _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC, none, found) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    (inode,), device = struct.unpack_from("=Q", found, 32), struct.unpack_from("=II", found, 136)
    return inode, os.makedev(*device)


def _is_propagated(where: int, thread: int) -> bool:
    """Tell whether what a thread mounts on a directory may appear in this process's namespace."""
    told = _MOUNT_ID.search(Path(f"/proc/self/fdinfo/{where}").read_text())
    assert told
    table = all_mounts(mountinfo=Path(f"/proc/{thread}/mountinfo"))
    at = next((each for each in table if each.mount_id == int(told[1])), None)
    if at is None:  # it is not below the root of the thread
        return True
    ours = {group for each in all_mounts(mountinfo=MOUNTINFO) for group in each.receives_from}
    return at.sends_to in ours
