# SPDX-License-Identifier: LGPL-2.1-or-later
"""Map extents: ranges of files that the kernel reads and writes in backing files by itself.

The daemon maps extents by an ioctl(2) on its own descriptor of /dev/efuse. This needs
CAP_SYS_ADMIN.
"""

from __future__ import annotations

import errno
import fcntl
import struct
from dataclasses import dataclass

from efuse.errors import MountError, StaleError, UsageError, reason

__all__ = ["Extent", "map_extent", "unmap_extents"]

_EXTENT = struct.Struct("=QQQQQiI")
_RANGE = struct.Struct("=QQQQ")
_MAGIC, _MAP, _UNMAP = 229, 64, 65
_WRITE, _TO_EOF, _SEALED, _NEW = 1, 2, 4, 8
_OFFSET_LIMIT = 1 << 63

_WHY = {
    errno.EAGAIN: "the connection's mounts are changing",
    errno.EBADF: "the descriptor is not open for reading, or not for writing",
    errno.EISDIR: "it is a directory",
    errno.ELOOP: "its file system is stacked too deep, or is this very mount",
    errno.ESTALE: "the kernel does not hold that inode (any more), "
    "or a later version was mapped or unmapped before",
    errno.ENOTCONN: "the mount is gone",
    errno.EOPNOTSUPP: "its file system counts no changes, so the extent cannot be sealed",
    errno.ETXTBSY: "a program has it mapped for writing, so the extent cannot be sealed",
    errno.EPERM: "mapping extents needs CAP_SYS_ADMIN",
    errno.ENOTTY: "the kernel's eFuse is older than this package",
}


def _iow(number: int, size: int) -> int:
    return 1 << 30 | size << 16 | _MAGIC << 8 | number


@dataclass(frozen=True)
class Extent:
    """A range of a file, and the backing file that stores its bytes.

    :ivar nodeid: nodeid of the file.
    :ivar fd: descriptor of the backing file; may be closed once the extent is mapped.
    :ivar offset: start of the range in the file, in bytes.
    :ivar length: length of the range, in bytes. None: the range goes to the end of the file, which
        is where the backing file ends.
    :ivar backing_offset: start of the range in the backing file, in bytes.
    :ivar version: version of the file's content, counted by the daemon. Extents of earlier versions
        are not used any more.
    :ivar write: whether the kernel also writes to the backing file.
    :ivar sealed: whether the kernel uses the extent only until the backing file is changed.
    :ivar new: whether the kernel may not hold the nodeid yet, because the reply to a request such
        as CREATE or LOOKUP is about to hand it out.
    """

    nodeid: int
    fd: int
    offset: int = 0
    length: int | None = None
    backing_offset: int = 0
    version: int = 0
    write: bool = False
    sealed: bool = False
    new: bool = False

    def __post_init__(self) -> None:
        for name in ("offset", "backing_offset"):
            _check(name, getattr(self, name), _OFFSET_LIMIT)
        if self.length is not None:
            _check("length", self.length - 1, _OFFSET_LIMIT)
        _check("version", self.version, 1 << 64)
        if self.write and self.sealed:
            raise UsageError(
                "an extent cannot be both written and sealed (EINVAL)",
                hint="sealed is for backing files that no program changes",
            )


def _check(name: str, value: int, limit: int) -> None:
    if not 0 <= value < limit:
        raise UsageError(f"the {name} of an extent cannot be {value} (EINVAL)")


def map_extent(device: int, extent: Extent) -> None:
    """Map *extent*. It replaces the parts of other extents that it overlaps.

    When this function returns, nothing is read or written any more through the replaced parts.

    :param device: the daemon's descriptor of /dev/efuse.
    :raises StaleError: the kernel does not hold the inode, knows a later version, or is mounting or
        unmounting this connection.
    :raises MountError: the kernel refused the extent.
    """
    flags = extent.write * _WRITE | (extent.length is None) * _TO_EOF
    flags |= extent.sealed * _SEALED | extent.new * _NEW
    raw = _EXTENT.pack(
        extent.nodeid,
        extent.offset,
        extent.length or 0,
        extent.backing_offset,
        extent.version,
        extent.fd,
        flags,
    )
    _ioctl(device, _iow(_MAP, _EXTENT.size), raw, f"an extent of inode {extent.nodeid}")


def unmap_extents(
    device: int, nodeid: int, *, offset: int = 0, length: int | None = None, version: int = 0
) -> None:
    """Unmap the extents of a range of a file.

    When this function returns, nothing is read or written through them any more.

    :param device: the daemon's descriptor of /dev/efuse.
    :param nodeid: nodeid of the file.
    :param offset: start of the range in the file, in bytes.
    :param length: length of the range, in bytes. None: the range ends where the file ends.
    :param version: if not 0, also unmap all extents of earlier versions, in the whole file. Such
        extents can then no longer be mapped.
    :raises MountError: the kernel refused the call.
    """
    _check("offset", offset, _OFFSET_LIMIT)
    if length is not None:
        _check("length", length - 1, _OFFSET_LIMIT)
    raw = _RANGE.pack(nodeid, offset, length or 0, version)
    _ioctl(device, _iow(_UNMAP, _RANGE.size), raw, f"the extents of inode {nodeid}")


def _ioctl(device: int, number: int, raw: bytes, what: str) -> None:
    try:
        fcntl.ioctl(device, number, raw)
    except OSError as error:
        why = _WHY.get(error.errno or 0)
        because = f"{why} ({errno.errorcode[error.errno or 0]})" if why else reason(error)
        if error.errno in (errno.EAGAIN, errno.ESTALE):
            raise StaleError(f"{what} cannot be changed: {because}") from error
        hint = "the mount option stack_depth=2" if error.errno == errno.ELOOP else None
        raise MountError(f"{what} cannot be changed: {because}", hint=hint) from error
