# SPDX-License-Identifier: LGPL-2.1-or-later
"""The types of <linux/efuse.h>: keys and values of the built-in maps, to bytes and back.

Pure: no system call. Each value that can be an answer begins with a stamp, whose checksum covers
what the value stands for (its seed) and its bytes, so that neither a torn nor a misplaced value is
ever taken.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any, ClassVar, NamedTuple, Protocol, Self

__all__ = [
    "BLOB_BYTES",
    "FOR_IDS",
    "NAME_BYTES",
    "NEVER_NS",
    "TAG_BYTES",
    "Attributes",
    "Blob",
    "BlobKey",
    "Entry",
    "EntryKey",
    "FileUse",
    "Geometry",
    "Grant",
    "GrantKey",
    "Stamp",
    "Tag",
    "Value",
    "Volume",
    "caller_of",
]

NAME_BYTES = 255
"""The longest name."""
BLOB_BYTES = 984
"""The longest xattr or link target that is kept."""
NEVER_NS = (1 << 64) - 1
"""An expiry that does not come."""
FOR_IDS = 1
"""Flag of a stamp: it is for every caller of these ids, whatever else it is."""

_CHECK = struct.Struct("<I")
_STAMP = struct.Struct("<IQQQ")  # behind `check`
_ENTRY_KEY = struct.Struct("<Q256s")
_ENTRY = struct.Struct("<QQ")
_ATTR = struct.Struct("<6Q10I")
_BLOB_KEY = struct.Struct("<QII256s")
_BLOB_HEAD = struct.Struct("<iI")
_GRANT_KEY = struct.Struct("<QIIQ")
_GRANT = struct.Struct("<II")
_VOLUME = struct.Struct("<5Q4I24x")
_NODEID = struct.Struct("<Q")
_BLOB_SEED = struct.Struct("<QI")
_NS = 1_000_000_000


def caller_of(uid: int, gid: int) -> int:
    """Return the caller of a fsuid and a fsgid (in the daemon's user namespace)."""
    return uid << 32 | gid


def _check_name(name: bytes) -> bytes:
    if len(name) > NAME_BYTES:
        raise ValueError(f"a name has at most {NAME_BYTES} bytes, this one {len(name)}")
    if b"\0" in name:
        raise ValueError("a name has no NUL byte")
    return name


class EntryKey(NamedTuple):
    """Key of ``entries``: a name in a directory.

    :param parent: the directory's nodeid.
    :param name: up to 255 bytes.
    """

    parent: int
    name: bytes

    def encode(self) -> bytes:
        """Return ``struct efuse_entry_key``."""
        return _ENTRY_KEY.pack(self.parent, _check_name(self.name))

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the key that *raw* holds."""
        parent, name = _ENTRY_KEY.unpack(raw)
        return cls(parent, name.rstrip(b"\0"))

    def seed(self) -> bytes:
        """Return what the value's checksum begins with."""
        return _NODEID.pack(self.parent) + self.name


class BlobKey(NamedTuple):
    """Key of ``blobs``.

    :param nodeid: the inode.
    :param opcode: of READLINK, GETXATTR or LISTXATTR (`efuse.opcodes`).
    :param name: the xattr's name, empty for the other two.
    """

    nodeid: int
    opcode: int
    name: bytes = b""

    def encode(self) -> bytes:
        """Return ``struct efuse_blob_key``."""
        return _BLOB_KEY.pack(self.nodeid, self.opcode, 0, _check_name(self.name))

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the key that *raw* holds."""
        nodeid, opcode, _pad, name = _BLOB_KEY.unpack(raw)
        return cls(nodeid, opcode, name.rstrip(b"\0"))

    def seed(self) -> bytes:
        """Return what the value's checksum begins with."""
        return _BLOB_SEED.pack(self.nodeid, self.opcode) + self.name


class GrantKey(NamedTuple):
    """Key of ``grants``: who may do what.

    :param nodeid: the inode.
    :param opcode: of OPEN, OPENDIR or ACCESS.
    :param arg: the open flags, or ACCESS's mask.
    :param caller: who asks: the kernel's own number, or `caller_of` his ids where answers do not
        depend on the caller.
    """

    nodeid: int
    opcode: int
    arg: int
    caller: int

    def encode(self) -> bytes:
        """Return ``struct efuse_grant_key``."""
        return _GRANT_KEY.pack(*self)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the key that *raw* holds."""
        return cls(*_GRANT_KEY.unpack(raw))

    def seed(self) -> bytes:
        """Return what the value's checksum begins with."""
        return self.encode()


@dataclass(frozen=True)
class Stamp:
    """What makes a value valid.

    :param epoch: the connection's epoch before the truth was read.
    :param expires_ns: CLOCK_MONOTONIC at which the value ends.
    :param caller: whom it answers: the kernel's own number, or `caller_of` his ids.
    :param flags: 0 or `FOR_IDS`.
    """

    epoch: int = 0
    expires_ns: int = NEVER_NS
    caller: int = 0
    flags: int = 0


class Value(Protocol):
    """What all values have."""

    stamp: Stamp

    def encode(self, seed: bytes) -> bytes:
        """Return the struct's bytes, with its checksum."""

    @classmethod
    def decode(cls, raw: bytes, seed: bytes) -> Self:
        """Return the value that *raw* holds.

        :raises ValueError: its checksum is wrong.
        """


def _sealed(stamp: Stamp, body: bytes, seed: bytes) -> bytes:
    head = _STAMP.pack(stamp.flags, stamp.epoch, stamp.expires_ns, stamp.caller)
    return _CHECK.pack(zlib.crc32(seed + head + body)) + head + body


def _unsealed(raw: bytes, seed: bytes, covered_bytes: int | None = None) -> tuple[Stamp, bytes]:
    (check,) = _CHECK.unpack_from(raw)
    if zlib.crc32(seed + raw[_CHECK.size : covered_bytes]) != check:
        raise ValueError("the value's checksum is wrong")
    flags, epoch, expires_ns, caller = _STAMP.unpack_from(raw, _CHECK.size)
    return Stamp(epoch, expires_ns, caller, flags), raw[_CHECK.size + _STAMP.size :]


@dataclass(frozen=True)
class Entry:
    """Value of ``entries``: the inode that a name stands for.

    :param nodeid: the inode, or 0: the name does not exist.
    :param generation: the inode's generation.
    """

    value_bytes: ClassVar[int] = 48
    nodeid: int
    generation: int = 0
    stamp: Stamp = field(default=Stamp())

    def encode(self, seed: bytes) -> bytes:
        """Return ``struct efuse_entry``; see `Value`."""
        return _sealed(self.stamp, _ENTRY.pack(self.nodeid, self.generation), seed)

    @classmethod
    def decode(cls, raw: bytes, seed: bytes) -> Self:
        """Return the value that *raw* holds; see `Value`."""
        stamp, body = _unsealed(raw, seed)
        nodeid, generation = _ENTRY.unpack(body)
        return cls(nodeid, generation, stamp)


@dataclass(frozen=True)
class Attributes:
    """Value of ``attrs``: an inode's attributes, named as in `os.stat_result`, times in ns."""

    value_bytes: ClassVar[int] = 120
    st_ino: int
    st_mode: int
    st_nlink: int = 1
    st_uid: int = 0
    st_gid: int = 0
    st_rdev: int = 0
    st_size: int = 0
    st_blocks: int = 0
    st_blksize: int = 4096
    st_atime_ns: int = 0
    st_mtime_ns: int = 0
    st_ctime_ns: int = 0
    flags: int = 0
    stamp: Stamp = field(default=Stamp())

    @classmethod
    def from_stat(cls, stat: Any, *, stamp: Stamp = Stamp()) -> Self:
        """Return the attributes of *stat*, an `os.stat_result` or whatever has the same fields."""
        return cls(
            st_ino=stat.st_ino,
            st_mode=stat.st_mode,
            st_nlink=stat.st_nlink,
            st_uid=stat.st_uid,
            st_gid=stat.st_gid,
            st_rdev=stat.st_rdev,
            st_size=stat.st_size,
            st_blocks=stat.st_blocks,
            st_blksize=stat.st_blksize,
            st_atime_ns=stat.st_atime_ns,
            st_mtime_ns=stat.st_mtime_ns,
            st_ctime_ns=stat.st_ctime_ns,
            stamp=stamp,
        )

    def encode(self, seed: bytes) -> bytes:
        """Return ``struct efuse_attrs``; see `Value`."""
        times = [divmod(t, _NS) for t in (self.st_atime_ns, self.st_mtime_ns, self.st_ctime_ns)]
        body = _ATTR.pack(
            self.st_ino,
            self.st_size,
            self.st_blocks,
            *(seconds & NEVER_NS for seconds, _ in times),
            *(nanoseconds for _, nanoseconds in times),
            self.st_mode,
            self.st_nlink,
            self.st_uid,
            self.st_gid,
            self.st_rdev,
            self.st_blksize,
            self.flags,
        )
        return _sealed(self.stamp, body, seed)

    @classmethod
    def decode(cls, raw: bytes, seed: bytes) -> Self:
        """Return the value that *raw* holds; see `Value`."""
        stamp, body = _unsealed(raw, seed)
        ino, size, blocks, *rest = _ATTR.unpack(body)
        seconds, nanoseconds = rest[:3], rest[3:6]
        mode, nlink, uid, gid, rdev, blksize, flags = rest[6:]
        times = [
            (s - (1 << 64) if s >> 63 else s) * _NS + n
            for s, n in zip(seconds, nanoseconds, strict=True)
        ]
        return cls(
            st_ino=ino,
            st_mode=mode,
            st_nlink=nlink,
            st_uid=uid,
            st_gid=gid,
            st_rdev=rdev,
            st_size=size,
            st_blocks=blocks,
            st_blksize=blksize,
            st_atime_ns=times[0],
            st_mtime_ns=times[1],
            st_ctime_ns=times[2],
            flags=flags,
            stamp=stamp,
        )


@dataclass(frozen=True)
class Blob:
    """Value of ``blobs``: what READLINK, GETXATTR or LISTXATTR answers.

    :param data: the answer, up to 984 bytes.
    :param error: 0, or -ENODATA: there is no such xattr.
    """

    value_bytes: ClassVar[int] = 1024
    data: bytes = b""
    error: int = 0
    stamp: Stamp = field(default=Stamp())

    def encode(self, seed: bytes) -> bytes:
        """Return ``struct efuse_blob``; see `Value`.

        :raises ValueError: the data are too long.
        """
        if len(self.data) > BLOB_BYTES:
            raise ValueError(f"a blob has at most {BLOB_BYTES} bytes, this one {len(self.data)}")
        body = _BLOB_HEAD.pack(self.error, len(self.data)) + self.data
        return _sealed(self.stamp, body, seed).ljust(self.value_bytes, b"\0")

    @classmethod
    def decode(cls, raw: bytes, seed: bytes) -> Self:
        """Return the value that *raw* holds; see `Value`."""
        head = _CHECK.size + _STAMP.size
        error, length = _BLOB_HEAD.unpack_from(raw, head)
        if length > BLOB_BYTES:
            raise ValueError("the value's length is wrong")
        start = head + _BLOB_HEAD.size
        stamp, _ = _unsealed(raw, seed, start + length)
        return cls(raw[start : start + length], error, stamp)


@dataclass(frozen=True)
class Grant:
    """Value of ``grants``: that a caller may open or access an inode.

    :param open_flags: FOPEN_* of the daemon's reply.
    """

    value_bytes: ClassVar[int] = 40
    open_flags: int = 0
    stamp: Stamp = field(default=Stamp())

    def encode(self, seed: bytes) -> bytes:
        """Return ``struct efuse_grant``; see `Value`."""
        return _sealed(self.stamp, _GRANT.pack(self.open_flags, 0), seed)

    @classmethod
    def decode(cls, raw: bytes, seed: bytes) -> Self:
        """Return the value that *raw* holds; see `Value`."""
        stamp, body = _unsealed(raw, seed)
        return cls(_GRANT.unpack(body)[0], stamp)


@dataclass(frozen=True)
class Volume:
    """Value of ``volumes``: what STATFS answers, named and in units as `os.statvfs_result`."""

    value_bytes: ClassVar[int] = 112
    f_blocks: int = 0
    f_bfree: int = 0
    f_bavail: int = 0
    f_files: int = 0
    f_ffree: int = 0
    f_bsize: int = 4096
    f_namemax: int = 255
    f_frsize: int = 4096
    stamp: Stamp = field(default=Stamp())

    def encode(self, seed: bytes) -> bytes:
        """Return ``struct efuse_volume``; see `Value`."""
        body = _VOLUME.pack(
            self.f_blocks,
            self.f_bfree,
            self.f_bavail,
            self.f_files,
            self.f_ffree,
            self.f_bsize,
            self.f_namemax,
            self.f_frsize,
            0,
        )
        return _sealed(self.stamp, body, seed)

    @classmethod
    def decode(cls, raw: bytes, seed: bytes) -> Self:
        """Return the value that *raw* holds; see `Value`."""
        stamp, body = _unsealed(raw, seed)
        blocks, bfree, bavail, files, ffree, bsize, namemax, frsize, _pad = _VOLUME.unpack(body)
        return cls(blocks, bfree, bavail, files, ffree, bsize, namemax, frsize, stamp)


_TAG = struct.Struct("=IIQQQQI20x")
TAG_BYTES = _TAG.size
"""Size of a tag."""


class Tag(NamedTuple):
    """What a slot of ``blocks`` holds: ``struct efuse_tag``, eight in each set of ``tags``."""

    lock: int
    used: int
    nodeid: int
    block: int
    epoch: int
    expires_ns: int
    length: int

    @classmethod
    def decode_set(cls, raw: bytes) -> tuple[Self, ...]:
        """Return the tags of a set."""
        return tuple(cls(*fields) for fields in _TAG.iter_unpack(raw))

    @staticmethod
    def nodeids(raw: bytes | mmap) -> Iterator[int]:
        """Iterate the nodeids of the tags in *raw* that say that their slot holds something."""
        for fields in _TAG.iter_unpack(raw):
            if fields[2]:
                yield fields[2]


_GEOMETRY = struct.Struct("=IIQ")


class Geometry(NamedTuple):
    """The element of ``geometry``: ``struct efuse_geometry``.

    :param sets: how many ``tags`` has.
    :param watched_ns: CLOCK_MONOTONIC until which ``files`` is counted; 0: it is not.
    """

    sets: int
    watched_ns: int = 0

    def encode(self) -> bytes:
        """Return the element's bytes."""
        return _GEOMETRY.pack(self.sets, 0, self.watched_ns)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return what the element's bytes say."""
        sets, _, watched_ns = _GEOMETRY.unpack(raw)
        return cls(sets, watched_ns)


_FILE_USE = struct.Struct("=QQ")


class FileUse(NamedTuple):
    """How often blocks of a file were looked for while somebody watched: ``struct efuse_file_use``.

    :param hits: blocks that were there.
    :param misses: blocks that were not, or not valid any more.
    """

    hits: int = 0
    misses: int = 0

    def encode(self) -> bytes:
        """Return the value's bytes."""
        return _FILE_USE.pack(*self)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return what the value's bytes say."""
        return cls(*_FILE_USE.unpack(raw))
