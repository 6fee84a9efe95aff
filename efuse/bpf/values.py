# SPDX-License-Identifier: LGPL-2.1-or-later
"""Encode and decode the keys and values of the built-in maps: the types of <linux/efuse.h>.

Pure: no system calls. Each value that can become an answer begins with a stamp. The checksum in the
stamp covers the value's bytes and its seed, which identifies the key. So the kernel never takes a
torn value, or a value that belongs to another key.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any, ClassVar, NamedTuple, Protocol, Self

__all__ = [
    "FOR_IDS",
    "NEVER_NS",
    "TAG_BYTES",
    "Attributes",
    "Entry",
    "EntryKey",
    "FileUse",
    "Geometry",
    "Grant",
    "GrantKey",
    "Stamp",
    "Tag",
    "Volume",
    "XattrKey",
    "XattrValue",
    "caller_of",
]

NAME_BYTES = 255
"""Length limit of a name, in bytes."""
BLOB_BYTES = 976
"""Length limit of a cached xattr value or link target, in bytes."""
NEVER_NS = (1 << 64) - 1
"""An expiry time that never comes, and the largest valid time, in ns."""
FOR_IDS = 1
"""Flag of a stamp: the value is for every caller with these ids (``EFUSE_STAMP_IDS``)."""

_CHECK = struct.Struct("<I")
_STAMP = struct.Struct("<IQQQ")  # the members that follow `check`
_ENTRY_KEY = struct.Struct("<Q256s")
_ENTRY = struct.Struct("<QQ")
_ATTR = struct.Struct("<6Q10I")
_BLOB_KEY = struct.Struct("<QII256s")
_BLOB_HEAD = struct.Struct("<QiI")
_GRANT_KEY = struct.Struct("<QIIQ")
_GRANT = struct.Struct("<II")
_VOLUME = struct.Struct("<5Q4I24x")
_NODEID = struct.Struct("<Q")
_BLOB_SEED = struct.Struct("<QI")
_NS = 1_000_000_000


def caller_of(uid: int, gid: int) -> int:
    """Return the caller number for a fsuid and a fsgid, in the daemon's user namespace."""
    return uid << 32 | gid


def _check_name(name: bytes) -> bytes:
    if len(name) > NAME_BYTES:
        raise ValueError(f"a name has at most {NAME_BYTES} bytes, but this one has {len(name)}")
    if b"\0" in name:
        raise ValueError("a name has no NUL byte")
    return name


class EntryKey(NamedTuple):
    """Key of ``entries``: a name in a directory.

    :param parent: nodeid of the directory.
    :param name: the name, up to 255 bytes.
    """

    parent: int
    name: bytes

    def encode(self) -> bytes:
        """Return ``struct efuse_entry_key``."""
        return _ENTRY_KEY.pack(self.parent, _check_name(self.name))

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the key in the bytes *raw*."""
        parent, name = _ENTRY_KEY.unpack(raw)
        return cls(parent, name.rstrip(b"\0"))

    def seed(self) -> bytes:
        """Return the seed of the value's checksum."""
        return _NODEID.pack(self.parent) + self.name


class XattrKey(NamedTuple):
    """Key of ``blobs``: the question that a blob answers.

    :param nodeid: nodeid of the inode.
    :param opcode: number of READLINK, GETXATTR or LISTXATTR (`efuse.opcodes`).
    :param name: name of the xattr for GETXATTR, else empty.
    """

    nodeid: int
    opcode: int
    name: bytes = b""

    def encode(self) -> bytes:
        """Return ``struct efuse_blob_key``."""
        return _BLOB_KEY.pack(self.nodeid, self.opcode, 0, _check_name(self.name))

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the key in the bytes *raw*."""
        nodeid, opcode, _pad, name = _BLOB_KEY.unpack(raw)
        return cls(nodeid, opcode, name.rstrip(b"\0"))

    def seed(self) -> bytes:
        """Return the seed of the value's checksum."""
        return _BLOB_SEED.pack(self.nodeid, self.opcode) + self.name


class GrantKey(NamedTuple):
    """Key of ``grants``: an operation on an inode by a caller.

    :param nodeid: nodeid of the inode.
    :param opcode: number of OPEN, OPENDIR or ACCESS (`efuse.opcodes`).
    :param arg: the open flags, or the mask of ACCESS.
    :param caller: the caller: a number that only the kernel can compute, or, on a connection whose
        answers do not depend on the caller, `caller_of` the caller's ids.
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
        """Return the key in the bytes *raw*."""
        return cls(*_GRANT_KEY.unpack(raw))

    def seed(self) -> bytes:
        """Return the seed of the value's checksum."""
        return self.encode()


@dataclass(frozen=True)
class Stamp:
    """What decides whether the kernel may use a value.

    :param epoch: the connection's epoch when the data was asked for.
    :param expires_ns: time at which the value expires, in ns of CLOCK_MONOTONIC.
    :param caller: the caller that the value is for: a number that only the kernel can compute, or
        `caller_of` the caller's ids.
    :param flags: 0 or `FOR_IDS`.
    """

    epoch: int = 0
    expires_ns: int = NEVER_NS
    caller: int = 0
    flags: int = 0


class Value(Protocol):
    """The interface of every value with a stamp."""

    stamp: Stamp

    def encode(self, seed: bytes) -> bytes:
        """Return the bytes of the struct, with the checksum.

        :param seed: result of the key's ``seed()``, or the nodeid as 8 bytes.
        """

    @classmethod
    def decode(cls, raw: bytes, seed: bytes) -> Self:
        """Return the value in the bytes *raw*.

        :param seed: the seed that the value was encoded with.
        :raises ValueError: the checksum is wrong.
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

    :param nodeid: nodeid of the inode; 0 if the name does not exist.
    :param generation: generation of the inode.
    :param stamp: what decides whether the kernel may use the value.
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
        """Return the value in the bytes *raw*; see `Value`."""
        stamp, body = _unsealed(raw, seed)
        nodeid, generation = _ENTRY.unpack(body)
        return cls(nodeid, generation, stamp)


@dataclass(frozen=True)
class Attributes:
    """Value of ``attrs``: attributes of an inode, named as in `os.stat_result`, times in ns."""

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
        """Return the attributes of *stat*, an `os.stat_result` or an object with its fields."""
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
        """Return the value in the bytes *raw*; see `Value`."""
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
class XattrValue:
    """Value of ``blobs``: the answer to READLINK, GETXATTR or LISTXATTR.

    :param data: the answer, up to 976 bytes.
    :param error: 0, or -ENODATA if there is no such xattr.
    :param stamp: what decides whether the kernel may use the value.
    """

    value_bytes: ClassVar[int] = 1024
    data: bytes = b""
    error: int = 0
    stamp: Stamp = field(default=Stamp())

    def encode(self, seed: bytes) -> bytes:
        """Return ``struct efuse_blob``; see `Value`.

        :raises ValueError: ``data`` is too long.
        """
        if len(self.data) > BLOB_BYTES:
            raise ValueError(
                f"a blob has at most {BLOB_BYTES} bytes, but this one has {len(self.data)}"
            )
        body = _BLOB_HEAD.pack(0, self.error, len(self.data)) + self.data
        return _sealed(self.stamp, body, seed).ljust(self.value_bytes, b"\0")

    @classmethod
    def decode(cls, raw: bytes, seed: bytes) -> Self:
        """Return the value in the bytes *raw*; see `Value`."""
        head = _CHECK.size + _STAMP.size
        _version, error, length = _BLOB_HEAD.unpack_from(raw, head)
        if length > BLOB_BYTES:
            raise ValueError("the value's length is wrong")
        start = head + _BLOB_HEAD.size
        stamp, _ = _unsealed(raw, seed, start + length)
        return cls(raw[start : start + length], error, stamp)


@dataclass(frozen=True)
class Grant:
    """Value of ``grants``: a caller may open or access an inode.

    :param open_flags: ``FOPEN_*`` flags of the daemon's reply.
    :param stamp: what decides whether the kernel may use the value.
    """

    value_bytes: ClassVar[int] = 40
    open_flags: int = 0
    stamp: Stamp = field(default=Stamp())

    def encode(self, seed: bytes) -> bytes:
        """Return ``struct efuse_grant``; see `Value`."""
        return _sealed(self.stamp, _GRANT.pack(self.open_flags, 0), seed)

    @classmethod
    def decode(cls, raw: bytes, seed: bytes) -> Self:
        """Return the value in the bytes *raw*; see `Value`."""
        stamp, body = _unsealed(raw, seed)
        return cls(_GRANT.unpack(body)[0], stamp)


@dataclass(frozen=True)
class Volume:
    """Value of ``volumes``: the answer to STATFS, fields and units as in `os.statvfs_result`."""

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
        """Return the value in the bytes *raw*; see `Value`."""
        stamp, body = _unsealed(raw, seed)
        blocks, bfree, bavail, files, ffree, bsize, namemax, frsize, _pad = _VOLUME.unpack(body)
        return cls(blocks, bfree, bavail, files, ffree, bsize, namemax, frsize, stamp)


_TAG = struct.Struct("=IIQQQQQI12x")
TAG_BYTES = _TAG.size
"""Size of a tag, in bytes."""


class Tag(NamedTuple):
    """Description of one slot of ``blocks``: ``struct efuse_tag``, eight in each set of ``tags``.

    :ivar lock: 0 if the slot is free to use, else the number of readers, or a writer's mark.
    :ivar used: whether the block was read lately.
    :ivar nodeid: nodeid of the file; 0 if the slot is empty.
    :ivar block: offset of the block in the file, in blocks.
    :ivar epoch: the connection's epoch when the data was asked for.
    :ivar expires_ns: time at which the block expires, in ns of CLOCK_MONOTONIC.
    :ivar version: version of the file; 0 if it has none.
    :ivar length: bytes of the block; fewer than a whole block only where the file ends.
    """

    lock: int
    used: int
    nodeid: int
    block: int
    epoch: int
    expires_ns: int
    version: int
    length: int

    @classmethod
    def decode_set(cls, raw: bytes) -> tuple[Self, ...]:
        """Return the tags in the bytes of one set."""
        return tuple(cls(*fields) for fields in _TAG.iter_unpack(raw))

    @staticmethod
    def nodeids(raw: bytes | mmap) -> Iterator[int]:
        """Yield the nodeid of each tag in *raw* whose slot is not empty."""
        for fields in _TAG.iter_unpack(raw):
            if fields[2]:
                yield fields[2]


_GEOMETRY = struct.Struct("=IIQ")


class Geometry(NamedTuple):
    """The element of ``geometry``: ``struct efuse_geometry``.

    :param sets: number of sets in ``tags``.
    :param watched_ns: time until which ``files`` is counted, in ns of CLOCK_MONOTONIC; 0 if it is
        not counted.
    """

    sets: int
    watched_ns: int = 0

    def encode(self) -> bytes:
        """Return the bytes of the element."""
        return _GEOMETRY.pack(self.sets, 0, self.watched_ns)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the element in the bytes *raw*."""
        sets, _, watched_ns = _GEOMETRY.unpack(raw)
        return cls(sets, watched_ns)


_FILE_USE = struct.Struct("=QQ")


class FileUse(NamedTuple):
    """Cache lookups for one file's blocks, counted while it is watched: ``struct efuse_file_use``.

    :param hits: blocks that were found.
    :param misses: blocks that were missing or no longer valid.
    """

    hits: int = 0
    misses: int = 0

    def encode(self) -> bytes:
        """Return the bytes of the value."""
        return _FILE_USE.pack(*self)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the value in the bytes *raw*."""
        return cls(*_FILE_USE.unpack(raw))
