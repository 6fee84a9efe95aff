# SPDX-License-Identifier: LGPL-2.1-or-later
"""What lies below a pass-through."""

from __future__ import annotations

from efuse.control import find
from efuse.errors import ControlError
from efuse.fs.passthrough.syscalls import file_system_type

__all__ = ["DEEPEST", "depth_above", "has_inode_per_file"]

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


def has_inode_per_file(fd: int) -> bool:
    """Tell whether all names of a file have one inode number: on FUSE its daemon may go by paths.

    :param fd: a descriptor on the file system.
    :raises OSError: it does not answer.
    """
    return file_system_type(fd) != _FUSE


def _is_efuse(path: str) -> bool:
    try:
        find(path)
    except ControlError:
        return False
    return True
