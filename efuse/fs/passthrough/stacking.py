# SPDX-License-Identifier: LGPL-2.1-or-later
"""What lies below a pass-through."""

from __future__ import annotations

from pathlib import Path

from efuse.control import find
from efuse.control.mounts import all_mounts, resolve
from efuse.errors import ControlError
from efuse.fs.passthrough.syscalls import file_system_type

__all__ = ["DEEPEST", "depth_above", "forgets_handles", "has_inode_per_file", "parts_hard_links"]

DEEPEST = 2
"""The kernel's FILESYSTEM_MAX_STACK_DEPTH."""

_OVERLAY, _ECRYPTFS, _FUSE = 0x794C7630, 0xF15F, 0x65735546


def depth_above(path: str, fd: int) -> int:
    """Return the stacking depth that a mount needs for files of a directory to back its own.

    The kernel stacks no mount upon one that is as deep as itself. What stacks upon other file
    systems has a depth of 1 or more, which user space is not told: overlayfs, eCryptfs and eFuse.

    :param path: of the directory.
    :param fd: a descriptor of it.
    :raises OSError: the directory's file system does not answer.
    """
    kind = file_system_type(fd)
    stacked = kind in (_OVERLAY, _ECRYPTFS) or (kind == _FUSE and _is_efuse(path))
    return DEEPEST if stacked else 1


def forgets_handles(kind: int) -> bool:
    """Tell whether a file handle ends before its file does: a daemon of FUSE forgets nodeids.

    :param kind: of file system, see :func:`file_system_type`.
    """
    return kind == _FUSE


def parts_hard_links(kind: int) -> bool:
    """Tell whether two names of one inode number may be two inodes.

    overlayfs without its option ``index`` shows the hard links of a lower layer so, and copies up
    the one that is changed. All other names of one number are one inode there, too.

    :param kind: of file system, see :func:`file_system_type`.
    """
    return kind == _OVERLAY


def has_inode_per_file(path: str, fd: int) -> bool:
    """Tell whether all names of a file have one inode number, at and below a directory.

    A daemon of FUSE may go by paths. overlayfs gives hard links of a lower layer one number though
    it parts them, and a file that is copied up may get another number.

    :param path: of the directory.
    :param fd: a descriptor of it.
    :raises OSError: its file system does not answer.
    """
    table = all_mounts()
    above = Path(resolve(path, table))
    return file_system_type(fd) not in (_FUSE, _OVERLAY) and not any(
        (m.is_fuse or m.is_efuse or m.fstype == "overlay")
        and Path(m.mountpoint).is_relative_to(above)
        for m in table
    )


def _is_efuse(path: str) -> bool:
    try:
        find(path)
    except ControlError:
        return False
    return True
