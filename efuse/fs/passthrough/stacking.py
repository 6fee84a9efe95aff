# SPDX-License-Identifier: LGPL-2.1-or-later
"""Properties of the file systems and mounts below a pass-through."""

from __future__ import annotations

from collections.abc import Iterable

from efuse.control.mounts import Mount

__all__ = [
    "EXT",
    "FUSE",
    "TMPFS",
    "below",
    "depth_above",
    "forgets_handles",
    "has_inode_per_file",
    "is_local",
    "is_there_twice",
    "keeps_numbers",
    "kind_by_row",
    "may_show_again",
    "parts_hard_links",
]

DEEPEST = 2
"""The kernel's FILESYSTEM_MAX_STACK_DEPTH: the largest stacking depth of a mount."""

FUSE = 0x65735546
_OVERLAY, _ECRYPTFS = 0x794C7630, 0xF15F
_NFS, _SMB, _CIFS, _SMB2 = 0x6969, 0x517B, 0xFF534D42, 0xFE534D42
_9P, _AFS, _CEPH, _CODA, _LUSTRE = 0x01021997, 0x5346414F, 0xC36400, 0x73757245, 0xBD00BD0
_KAFS, _ORANGEFS, _VBOXSF, _DEVPTS = 0x6B414653, 0x20030528, 0x786F4256, 0x1CD1
EXT, TMPFS = 0xEF53, 0x01021994
_XFS, _BTRFS, _F2FS = 0x58465342, 0x9123683E, 0xF2F52010
_LOCAL = frozenset({EXT, _XFS, _F2FS, TMPFS})
_GIVES_NUMBERS_AGAIN = frozenset(
    {
        *(FUSE, _NFS, _SMB, _CIFS, _SMB2, _9P, _AFS, _KAFS),
        *(_CEPH, _CODA, _LUSTRE, _ORANGEFS, _VBOXSF, _DEVPTS),
        # A deleted subvolume loses its device number, although descriptors lead into it.
        _BTRFS,
    }
)
_SHOW_OTHER_FILES = frozenset(
    {
        *("overlay", "ecryptfs", "aufs", "unionfs"),
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "orangefs"),
    }
)


def _is_of_fuse(mount: Mount) -> bool:
    """Tell whether a FUSE daemon serves the mount, by any transport."""
    return mount.is_fuse or mount.is_efuse or mount.fstype == "virtiofs"


def kind_by_row(mount: Mount | None) -> int | None:
    """Return the type of a file system if the row of its mount tells it better than statfs(2).

    A FUSE daemon need not implement statfs. A 9p server sends the type that its own files have.
    """
    if mount is None:
        return None
    return FUSE if _is_of_fuse(mount) else _9P if mount.fstype == "9p" else None


def depth_above(kind: int, mount: Mount | None) -> int:
    """Return the stacking depth that a mount needs to use files of a directory as backing files.

    Backing files must be on a file system of a lower depth. overlayfs, eCryptfs and eFuse stack on
    other file systems, so their depth is at least 1. User space cannot read it.

    :param kind: type of the directory's file system, see :func:`file_system_type`.
    :param mount: mount that the directory is on; None if it is not visible.
    """
    stacked = kind in (_OVERLAY, _ECRYPTFS) or (mount is not None and mount.is_efuse)
    return DEEPEST if stacked else 1


def forgets_handles(kind: int) -> bool:
    """Tell whether a file handle may become invalid while its file exists.

    This is so on FUSE, where a handle is a nodeid, which the daemon forgets.

    :param kind: type of the file system, see :func:`file_system_type`.
    """
    return kind == FUSE


def keeps_numbers(kind: int) -> bool:
    """Tell whether no other file gets the inode number of a file that has an O_PATH descriptor.

    This is not so if a server or a daemon assigns the numbers, because it does not know of O_PATH
    descriptors. It is not so for terminals (devpts), either: only an open terminal keeps its
    number.

    :param kind: type of the file system, see :func:`file_system_type`.
    """
    return kind not in _GIVES_NUMBERS_AGAIN


def is_local(kind: int) -> bool:
    """Tell whether this kernel alone decides what is in the file system, as far as is known.

    No server, daemon or other file system has a part in it. So :func:`keeps_numbers` is true,
    :func:`forgets_handles` and :func:`parts_hard_links` are false, and statx(2) returns the same
    attributes whether it asks for cached values or not.

    :param kind: type of the file system, see :func:`file_system_type`.
    """
    return kind in _LOCAL


def parts_hard_links(kind: int) -> bool:
    """Tell whether two names with one inode number may be two inodes.

    On overlayfs without its option ``index``, hard links of a lower layer are: only the name that
    is changed is copied up. All other names with one number are one inode there, too.

    :param kind: type of the file system, see :func:`file_system_type`.
    """
    return kind == _OVERLAY


def below(path: str, number: int, table: Iterable[Mount], *, own: int = -1) -> list[Mount]:
    """Return the mount that a directory is on, if it is in *table*, and the mounts below it.

    :param path: path of the directory, without symbolic links.
    :param number: id of the mount that the directory is on.
    :param table: all visible mounts.
    :param own: device of the pass-through's own mounts, which are left out.
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

    Then a directory may have two inodes, one for each mount. So may a file, if the mounts have
    different rights. The kernel does not see that a change of one inode also changes the other.

    :param mounts: the mounts at and below a directory, see :func:`below`.
    """
    devices = [mount.connection for mount in mounts]
    return len(set(devices)) < len(devices)


def may_show_again(mounts: Iterable[Mount]) -> bool:
    """Tell whether one of several mounts may show the files of another one.

    Such a file has two inodes, and the kernel does not see that a change of one also changes the
    other. bindfs, overlayfs and eCryptfs show the files of other directories. A network file system
    may have its server on this machine.

    :param mounts: the mounts at and below a directory, see :func:`below`.
    """
    found = list(mounts)
    return len(found) > 1 and any(
        _is_of_fuse(mount) or mount.fstype in _SHOW_OTHER_FILES for mount in found
    )


def has_inode_per_file(kind: int, mounts: Iterable[Mount]) -> bool:
    """Tell whether all names of a file have one inode number, at and below a directory.

    A FUSE daemon may give each path its own number. overlayfs gives hard links of a lower layer one
    number although they may become separate files, and may change the number of a file that it
    copies up. A second mount of a file system may show a file with other rights.

    :param kind: type of the directory's file system, see :func:`file_system_type`.
    :param mounts: the mounts at and below the directory, see :func:`below`.
    """
    found = list(mounts)
    return (
        kind not in (FUSE, _OVERLAY)
        and not any(_is_of_fuse(mount) or mount.fstype == "overlay" for mount in found)
        and not is_there_twice(found)
    )
