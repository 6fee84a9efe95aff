# SPDX-License-Identifier: LGPL-2.1-or-later
"""What lies below a pass-through."""

from __future__ import annotations

from pathlib import Path

from efuse.control import find
from efuse.control.mounts import all_mounts, resolve
from efuse.errors import ControlError
from efuse.fs.passthrough.syscalls import file_system_type, status

__all__ = [
    "DEEPEST",
    "depth_above",
    "forgets_handles",
    "has_inode_per_file",
    "keeps_numbers",
    "parts_hard_links",
]

DEEPEST = 2
"""The kernel's FILESYSTEM_MAX_STACK_DEPTH."""

_OVERLAY, _ECRYPTFS, _FUSE = 0x794C7630, 0xF15F, 0x65735546
_NFS, _SMB, _CIFS, _SMB2 = 0x6969, 0x517B, 0xFF534D42, 0xFE534D42
_9P, _AFS, _CEPH, _CODA, _LUSTRE = 0x01021997, 0x5346414F, 0xC36400, 0x73757245, 0xBD00BD0
_VBOXSF = 0x786F4256
_REMOTE = frozenset({_FUSE, _NFS, _SMB, _CIFS, _SMB2, _9P, _AFS, _CEPH, _CODA, _LUSTRE, _VBOXSF})


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


def keeps_numbers(kind: int) -> bool:
    """Tell whether no other file gets a file's inode number while a descriptor leads to it.

    Not where a server or a daemon gives the numbers: an O_PATH descriptor is unknown to it.

    :param kind: of file system, see :func:`file_system_type`.
    """
    return kind not in _REMOTE


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
    it parts them, and a file that is copied up may get another number. A bind mount may show a file
    with other rights.

    :param path: of the directory.
    :param fd: a descriptor of it.
    :raises OSError: its file system does not answer.
    """
    table = all_mounts()
    above = Path(resolve(path, table))
    below = [m for m in table if Path(m.mountpoint).is_relative_to(above)]
    devices = [status(fd).device, *(m.connection for m in below if m.mountpoint != str(above))]
    return (
        file_system_type(fd) not in (_FUSE, _OVERLAY)
        and not any(m.is_fuse or m.is_efuse or m.fstype == "overlay" for m in below)
        and len(set(devices)) == len(devices)
    )


def _is_efuse(path: str) -> bool:
    try:
        find(path)
    except ControlError:
        return False
    return True
