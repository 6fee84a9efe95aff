# SPDX-License-Identifier: LGPL-2.1-or-later
"""What lies below a pass-through."""

from __future__ import annotations

from collections.abc import Iterable

from efuse.control.mounts import Mount

__all__ = [
    "DEEPEST",
    "FUSE",
    "below",
    "depth_above",
    "forgets_handles",
    "has_inode_per_file",
    "is_of_fuse",
    "is_there_twice",
    "keeps_numbers",
    "may_show_again",
    "parts_hard_links",
]

DEEPEST = 2
"""The kernel's FILESYSTEM_MAX_STACK_DEPTH."""

FUSE = 0x65735546
_OVERLAY, _ECRYPTFS = 0x794C7630, 0xF15F
_NFS, _SMB, _CIFS, _SMB2 = 0x6969, 0x517B, 0xFF534D42, 0xFE534D42
_9P, _AFS, _CEPH, _CODA, _LUSTRE = 0x01021997, 0x5346414F, 0xC36400, 0x73757245, 0xBD00BD0
_KAFS, _ORANGEFS, _VBOXSF, _DEVPTS = 0x6B414653, 0x20030528, 0x786F4256, 0x1CD1
_GIVES_NUMBERS_AGAIN = frozenset(
    {
        *(FUSE, _NFS, _SMB, _CIFS, _SMB2, _9P, _AFS, _KAFS),
        *(_CEPH, _CODA, _LUSTRE, _ORANGEFS, _VBOXSF, _DEVPTS),
    }
)
_SHOW_OTHER_FILES = frozenset(
    {
        *("overlay", "ecryptfs", "aufs", "unionfs"),
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "orangefs"),
    }
)


def is_of_fuse(mount: Mount) -> bool:
    """Tell whether the files of a mount are a daemon's, of whichever transport."""
    return mount.is_fuse or mount.is_efuse or mount.fstype == "virtiofs"


def depth_above(kind: int, mount: Mount | None) -> int:
    """Return the stacking depth that a mount needs for files of a directory to back its own.

    The kernel stacks no mount upon one that is as deep as itself. What stacks upon other file
    systems has a depth of 1 or more, which user space is not told: overlayfs, eCryptfs and eFuse.

    :param kind: of file system, see :func:`file_system_type`.
    :param mount: that the directory is on, None if it is not to be seen.
    """
    stacked = kind in (_OVERLAY, _ECRYPTFS) or (mount is not None and mount.is_efuse)
    return DEEPEST if stacked else 1


def forgets_handles(kind: int) -> bool:
    """Tell whether a file handle ends before its file does: a daemon of FUSE forgets nodeids.

    :param kind: of file system, see :func:`file_system_type`.
    """
    return kind == FUSE


def keeps_numbers(kind: int) -> bool:
    """Tell whether no other file gets a file's inode number while a descriptor leads to it.

    Not where a server or a daemon gives the numbers: an O_PATH descriptor is unknown to it. Nor for
    terminals: their numbers are those of what has them open.

    :param kind: of file system, see :func:`file_system_type`.
    """
    return kind not in _GIVES_NUMBERS_AGAIN


def parts_hard_links(kind: int) -> bool:
    """Tell whether two names of one inode number may be two inodes.

    overlayfs without its option ``index`` shows the hard links of a lower layer so, and copies up
    the one that is changed. All other names of one number are one inode there, too.

    :param kind: of file system, see :func:`file_system_type`.
    """
    return kind == _OVERLAY


def below(path: str, number: int, table: Iterable[Mount], *, own: int = -1) -> list[Mount]:
    """Return the mount that a directory is on, if it is to be seen, and those below the directory.

    :param path: of the directory, without symbolic links.
    :param number: of its mount.
    :param table: all mounts.
    :param own: the device of mounts that are left out: the pass-through's own.
    """
    above = path.rstrip("/") + "/"
    return [
        mount
        for mount in table
        if mount.connection != own
        and (mount.mount_id == number or _is_within(mount.mountpoint, above))
    ]


def _is_within(mountpoint: str, above: str) -> bool:
    return len(mountpoint) > len(above) and mountpoint.startswith(above)


def is_there_twice(mounts: Iterable[Mount]) -> bool:
    """Tell whether a file system is mounted more than once.

    A directory of it may have two inodes then, one by each mount, and so may a file that is written
    by one of them alone: neither is told of what is done by the other.

    :param mounts: as of :func:`below`.
    """
    devices = [mount.connection for mount in mounts]
    return len(set(devices)) < len(devices)


def may_show_again(mounts: Iterable[Mount]) -> bool:
    """Tell whether one of several mounts may show the files of another one.

    Such a file has two inodes, and neither is told of what is done to the other. bindfs, overlayfs
    and eCryptfs show the files of other directories, and a server may be on this machine.

    :param mounts: as of :func:`below`.
    """
    found = list(mounts)
    return len(found) > 1 and any(
        is_of_fuse(mount) or mount.fstype in _SHOW_OTHER_FILES for mount in found
    )


def has_inode_per_file(kind: int, mounts: Iterable[Mount]) -> bool:
    """Tell whether all names of a file have one inode number, at and below a directory.

    A daemon of FUSE may go by paths. overlayfs gives hard links of a lower layer one number though
    it parts them, and a file that is copied up may get another number. A bind mount may show a file
    with other rights.

    :param kind: of the directory's file system, see :func:`file_system_type`.
    :param mounts: as of :func:`below`.
    """
    found = list(mounts)
    return (
        kind not in (FUSE, _OVERLAY)
        and not any(is_of_fuse(mount) or mount.fstype == "overlay" for mount in found)
        and not is_there_twice(found)
    )
