# SPDX-License-Identifier: LGPL-2.1-or-later
"""The members of FUSE's requests and replies that a trace reads, as in <linux/fuse.h>.

Numbers and names of the opcodes are in `efuse.opcodes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = [
    "ATTR",
    "ENTRY_ANSWERS",
    "ENTRY_ATTR",
    "ENTRY_GENERATION",
    "ENTRY_NODEID",
    "FATTR_RIGHTS",
    "FLAGS",
    "HANDLE",
    "IOCTL_RESULT",
    "OFFSET",
    "OPENED_FLAGS",
    "OTHER_NODEID",
    "SIZE",
    "STATFS",
    "XATTR_SIZE",
    "Field",
]


class Field(NamedTuple):
    """A member of a struct.

    :param struct: name of the struct, without ``fuse_``.
    :param member: name of the member.
    :param offset: offset of the member in the struct, in bytes.
    :param size: size of the member, in bytes.
    """

    struct: str
    member: str
    offset: int
    size: int

    def raw(self, struct: bytes) -> bytes:
        """Return the bytes of the member. They are fewer if *struct* is cut off."""
        return struct[self.offset : self.offset + self.size]

    def number(self, struct: bytes) -> int | None:
        """Return the member as an unsigned number; None if *struct* is cut off."""
        raw = self.raw(struct)
        return int.from_bytes(raw, "little") if len(raw) == self.size else None


_COPIES = ("copy_file_range", "copy_file_range_64")

OTHER_NODEID: Mapping[str, Field] = MappingProxyType(
    {
        "rename": Field("rename_in", "newdir", 0, 8),
        "rename2": Field("rename2_in", "newdir", 0, 8),
        "link": Field("link_in", "oldnodeid", 0, 8),
        **dict.fromkeys(_COPIES, Field("copy_file_range_in", "nodeid_out", 16, 8)),
    }
)
"""Second inode of a request, by opcode."""

_READ_OFFSET = Field("read_in", "offset", 8, 8)
OFFSET: Mapping[str, Field] = MappingProxyType(
    {
        **dict.fromkeys(("read", "readdir", "readdirplus"), _READ_OFFSET),
        "write": Field("write_in", "offset", 8, 8),
        "fallocate": Field("fallocate_in", "offset", 8, 8),
        "lseek": Field("lseek_in", "offset", 8, 8),
        **dict.fromkeys(_COPIES, Field("copy_file_range_in", "off_in", 8, 8)),
    }
)
"""Start of the range of a request, by opcode."""

_READ_SIZE = Field("read_in", "size", 16, 4)
SIZE: Mapping[str, Field] = MappingProxyType(
    {
        **dict.fromkeys(("read", "readdir", "readdirplus"), _READ_SIZE),
        "write": Field("write_in", "size", 16, 4),
        "fallocate": Field("fallocate_in", "length", 16, 8),
        **dict.fromkeys(_COPIES, Field("copy_file_range_in", "len", 40, 8)),
        **dict.fromkeys(("getxattr", "listxattr"), Field("getxattr_in", "size", 0, 4)),
    }
)
"""Number of bytes to read, write or return, by opcode."""

FLAGS: Mapping[str, Field] = MappingProxyType(
    {
        **dict.fromkeys(("open", "opendir"), Field("open_in", "flags", 0, 4)),
        "access": Field("access_in", "mask", 0, 4),
        "setattr": Field("setattr_in", "valid", 0, 4),
    }
)
"""Open flags, mask of rights, or attributes to set, by opcode."""

HANDLE: Mapping[str, Field] = MappingProxyType(
    {
        **dict.fromkeys(("open", "opendir"), Field("open_out", "fh", 0, 8)),
        "flush": Field("flush_in", "fh", 0, 8),
        "release": Field("release_in", "fh", 0, 8),
    }
)
"""File handle, by opcode: in the reply of OPEN and OPENDIR, in the request of the others."""

FATTR_RIGHTS = 1 << 0 | 1 << 1 | 1 << 2
"""FATTR_MODE, FATTR_UID and FATTR_GID: the attributes that decide who may open a file."""

ENTRY_ANSWERS = ("lookup", "mknod", "mkdir", "symlink", "link", "create", "tmpfile")
"""Opcodes whose reply begins with a ``struct fuse_entry_out``."""
ENTRY_NODEID = Field("entry_out", "nodeid", 0, 8)
ENTRY_GENERATION = Field("entry_out", "generation", 8, 8)
ENTRY_ATTR = Field("entry_out", "attr", 40, 88)
ATTR = Field("attr_out", "attr", 16, 88)
OPENED_FLAGS = Field("open_out", "open_flags", 8, 4)
STATFS = Field("statfs_out", "st", 0, 80)
XATTR_SIZE = Field("getxattr_out", "size", 0, 4)
IOCTL_RESULT = Field("ioctl_out", "result", 0, 4)
