# SPDX-License-Identifier: LGPL-2.1-or-later
"""The fields of replies, notifications and ioctls (<linux/fuse.h>, <linux/efuse.h>)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, eq=False)
class Layout:
    """The fields of a structure.

    :ivar fields: name and width of each field. A width is a code of `struct`, without a sign.
    """

    fields: tuple[tuple[str, str], ...]

    @cached_property
    def names(self) -> list[str]:
        return [name for name, _ in self.fields]

    @cached_property
    def size(self) -> int:
        return self._struct.size

    @cached_property
    def bits(self) -> dict[str, int]:
        """The width of each field."""
        return {name: 8 * struct.calcsize("=" + code) for name, code in self.fields}

    @cached_property
    def _struct(self) -> struct.Struct:
        return struct.Struct("=" + "".join(code for _, code in self.fields))

    def encode(self, values: dict[str, int]) -> bytes:
        """Return the structure. Bits of a value that do not fit its field are dropped."""
        cut = [values.get(name, 0) & ((1 << bits) - 1) for name, bits in self.bits.items()]
        return self._struct.pack(*cut)


def _layout(words: str) -> Layout:
    """Return the layout that *words* name: each is ``NAME:WIDTH``."""
    fields = [word.split(":") for word in words.split()]
    return Layout(tuple((name, width) for name, width in fields))


_ATTR = """ino:Q size:Q blocks:Q atime:Q mtime:Q ctime:Q atimensec:I mtimensec:I ctimensec:I mode:I
nlink:I uid:I gid:I rdev:I blksize:I attr_flags:I"""
_ENTRY = f"nodeid:Q generation:Q entry_valid:Q attr_valid:Q entry_nsec:I attr_nsec:I {_ATTR}"
_OPEN = "fh:Q open_flags:I backing_id:I"
_DIRENT = "d_ino:Q d_off:Q namelen:I d_type:I"
_TIME = "{0}_sec:Q {0}_nsec:I {0}_reserved:I"

EMPTY = _layout("")
ENTRY = _layout(_ENTRY)
ATTR_OUT = _layout(f"attr_valid:Q attr_nsec:I dummy:I {_ATTR}")
OPEN_OUT = _layout(_OPEN)
CREATE_OUT = _layout(f"{_ENTRY} {_OPEN}")
DIRENT = _layout(_DIRENT)
DIRENTPLUS = _layout(f"{_ENTRY} {_DIRENT}")
WRITE_OUT = _layout("written:I padding:I")
COPY_64_OUT = _layout("bytes_copied:Q")
STATFS_OUT = _layout(
    "blocks:Q bfree:Q bavail:Q files:Q ffree:Q bsize:I namelen:I frsize:I padding:I"
    " spare0:Q spare1:Q spare2:Q"
)
XATTR_OUT = _layout("size:I padding:I")
LK_OUT = _layout("start:Q end:Q type:I pid:I")
BMAP_OUT = _layout("block:Q")
IOCTL_OUT = _layout("result:I flags:I in_iovs:I out_iovs:I")
POLL_OUT = _layout("revents:I padding:I")
LSEEK_OUT = _layout("offset:Q")
STATX_OUT = _layout(
    "attr_valid:Q attr_nsec:I flags:I spare0:Q spare1:Q mask:I blksize:I attributes:Q nlink:I"
    " uid:I gid:I mode:H spare2:H ino:Q size:Q blocks:Q attributes_mask:Q "
    + " ".join(_TIME.format(name) for name in ("atime", "btime", "ctime", "mtime"))
    + " rdev_major:I rdev_minor:I dev_major:I dev_minor:I "
    + " ".join(f"rest{number}:Q" for number in range(14))
)
INIT_OUT = _layout(
    "major:I minor:I max_readahead:I flags:I max_background:H congestion_threshold:H max_write:I"
    " time_gran:I max_pages:H map_alignment:H flags2:I max_stack_depth:I request_timeout:H"
    " unused0:H unused1:I unused2:I unused3:I unused4:I unused5:I"
)

# Notifications by code: name and layout. Names and data follow.
NOTIFICATIONS = {
    1: ("poll", _layout("kh:Q")),
    2: ("inval_inode", _layout("nodeid:Q offset:Q length:Q")),
    3: ("inval_entry", _layout("nodeid:Q namelen:I flags:I")),
    4: ("store", _layout("nodeid:Q offset:Q size:I padding:I")),
    5: ("retrieve", _layout("unique:Q nodeid:Q offset:Q size:I padding:I")),
    6: ("delete", _layout("nodeid:Q child:Q namelen:I padding:I")),
    7: ("resend", EMPTY),
    8: ("inc_epoch", EMPTY),
    9: ("prune", _layout("count:I padding:I spare:Q")),
}

# The ioctls of the device by name: number, and layout of the argument.
_READ, _WRITE = 2 << 30, 1 << 30
_FUSE, _CSD = 229 << 8, 0xC5 << 8
DEVICE_IOCTLS = {
    "FUSE_DEV_IOC_CLONE": (_READ | 4 << 16 | _FUSE | 0, _layout("fd:I")),
    "FUSE_DEV_IOC_BACKING_OPEN": (
        _WRITE | 16 << 16 | _FUSE | 1,
        _layout("fd:I flags:I padding:Q"),
    ),
    "FUSE_DEV_IOC_BACKING_CLOSE": (_WRITE | 4 << 16 | _FUSE | 2, _layout("backing_id:I")),
    "EFUSE_IOC_MAP": (
        _WRITE | 48 << 16 | _FUSE | 64,
        _layout("nodeid:Q offset:Q length:Q backing_offset:Q version:Q fd:I flags:I"),
    ),
    "EFUSE_IOC_UNMAP": (
        _WRITE | 32 << 16 | _FUSE | 65,
        _layout("nodeid:Q offset:Q length:Q version:Q"),
    ),
    "EFUSE_IOC_CHANNEL": (
        _WRITE | 16 << 16 | _FUSE | 66,
        _layout("cpu:I slots:I slot_size:I flags:I"),
    ),
    "EFUSE_IOC_NEXT": (
        _READ | _WRITE | 24 << 16 | _FUSE | 67,
        _layout("slot:I length:I buffer:Q size:I flags:I"),
    ),
    "EFUSE_IOC_TAKEOVER": (_WRITE | 16 << 16 | _FUSE | 68, _layout("fd:I flags:I reserved:Q")),
}
STORAGE_IOCTLS = {
    "CSD_IOC_RUN": (
        _WRITE | 80 << 16 | _CSD | 0,
        _layout(
            "name0:Q name1:Q name2:Q name3:Q fd:I place:I offset:Q length:Q max_steps:Q args:Q"
            " args_size:I flags:I"
        ),
    ),
    "CSD_IOC_STATUS": (
        _READ | 72 << 16 | _CSD | 1,
        _layout(" ".join(f"word{number}:Q" for number in range(9))),
    ),
    "CSD_IOC_RESTART": (_WRITE | 16 << 16 | _CSD | 2, _layout("args:Q args_size:I flags:I")),
}


@dataclass
class Part:
    """A structure of a message, with what follows it.

    :ivar values: values of its fields; a field without a value is 0.
    :ivar tail: data or a name that follows the structure.
    :ivar fixed: names of fields that no mutation may change.
    """

    layout: Layout
    values: dict[str, int]
    tail: bytes = b""
    fixed: frozenset[str] = field(default_factory=frozenset)

    def encode(self) -> bytes:
        raw = self.layout.encode(self.values) + self.tail
        is_entry = self.layout in (DIRENT, DIRENTPLUS)
        return raw + bytes(-len(raw) % 8) if is_entry else raw
