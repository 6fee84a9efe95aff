# SPDX-License-Identifier: LGPL-2.1-or-later
"""The part of the FUSE protocol (<linux/fuse.h>) that the test daemon uses.

It is written apart from `efuse.opcodes` and `efuse.tracing.protocol`, so that a wrong number there
does not also stand here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

OPCODES = {
    1: "lookup",
    2: "forget",
    3: "getattr",
    4: "setattr",
    5: "readlink",
    6: "symlink",
    8: "mknod",
    9: "mkdir",
    10: "unlink",
    11: "rmdir",
    12: "rename",
    13: "link",
    14: "open",
    15: "read",
    16: "write",
    17: "statfs",
    18: "release",
    20: "fsync",
    21: "setxattr",
    22: "getxattr",
    23: "listxattr",
    24: "removexattr",
    25: "flush",
    26: "init",
    27: "opendir",
    28: "readdir",
    29: "releasedir",
    30: "fsyncdir",
    31: "getlk",
    32: "setlk",
    33: "setlkw",
    34: "access",
    35: "create",
    36: "interrupt",
    37: "bmap",
    38: "destroy",
    39: "ioctl",
    40: "poll",
    41: "notify_reply",
    42: "batch_forget",
    43: "fallocate",
    44: "readdirplus",
    45: "rename2",
    46: "lseek",
    47: "copy_file_range",
    48: "setupmapping",
    49: "removemapping",
    50: "syncfs",
    51: "tmpfile",
    52: "statx",
    53: "copy_file_range_64",
}

# Flags of INIT.
FUSE_ASYNC_READ, FUSE_POSIX_LOCKS, FUSE_ATOMIC_O_TRUNC = 1 << 0, 1 << 1, 1 << 3
FUSE_BIG_WRITES, FUSE_FLOCK_LOCKS, FUSE_AUTO_INVAL_DATA = 1 << 5, 1 << 10, 1 << 12
FUSE_ASYNC_DIO = 1 << 15
FUSE_DO_READDIRPLUS, FUSE_WRITEBACK_CACHE, FUSE_PARALLEL_DIROPS = 1 << 13, 1 << 16, 1 << 18
FUSE_POSIX_ACL = 1 << 20
FUSE_MAX_PAGES, FUSE_INIT_EXT, FUSE_PASSTHROUGH = 1 << 22, 1 << 30, 1 << 37

# Flags of the reply to OPEN and OPENDIR.
FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_CACHE_DIR = 1 << 0, 1 << 1, 1 << 3
FOPEN_NONSEEKABLE, FOPEN_STREAM = 1 << 2, 1 << 4
FOPEN_NOFLUSH = 1 << 5  # a close waits for no WRITE
FOPEN_PASSTHROUGH = 1 << 7

# A flag of RELEASE.
FUSE_RELEASE_FLOCK_UNLOCK = 1 << 1
STATX_BASIC_STATS = 0x7FF
STATX_BTIME = 0x800

_IN = struct.Struct("=IIQQIIIHH")
_OUT = struct.Struct("=IiQ")

_COPY = ("=QQQQQQQ", ("fh", "offset", "nodeid_out", "", "off_out", "length", "flags"))
_LOCK = ("=QQQQIIII", ("fh", "owner", "start", "end", "type", "pid", "flags", ""))

# The fixed part of requests, which precedes names or data: layout and names of the fields.
_FIXED = {
    "getattr": ("=IIQ", ("flags", "", "fh")),
    "setattr": (
        "=IIQQQQQQIIIIIIII",
        (
            "valid", "", "fh", "size", "", "atime", "mtime", "ctime",
            "atimensec", "mtimensec", "ctimensec", "mode", "", "uid", "gid", "",
        ),
    ),
    "mknod": ("=IIII", ("mode", "rdev", "umask", "")),
    "mkdir": ("=II", ("mode", "umask")),
    "rename": ("=Q", ("newdir",)),
    "rename2": ("=QII", ("newdir", "flags", "")),
    "link": ("=Q", ("oldnodeid",)),
    "open": ("=II", ("flags", "")),
    "opendir": ("=II", ("flags", "")),
    "create": ("=IIII", ("flags", "mode", "umask", "")),
    "tmpfile": ("=IIII", ("flags", "mode", "umask", "")),
    "read": ("=QQIIQII", ("fh", "offset", "size", "", "", "", "")),
    "readdir": ("=QQIIQII", ("fh", "offset", "size", "", "", "", "")),
    "readdirplus": ("=QQIIQII", ("fh", "offset", "size", "", "", "", "")),
    "write": ("=QQIIQII", ("fh", "offset", "size", "", "", "", "")),
    "release": ("=QIIQ", ("fh", "flags", "release_flags", "owner")),
    "releasedir": ("=QIIQ", ("fh", "flags", "", "")),
    "flush": ("=QIIQ", ("fh", "", "", "owner")),
    "fsync": ("=QII", ("fh", "", "")),
    "fsyncdir": ("=QII", ("fh", "", "")),
    "setxattr": ("=II", ("size", "flags")),
    "getxattr": ("=II", ("size", "")),
    "listxattr": ("=II", ("size", "")),
    "access": ("=II", ("mask", "")),
    "forget": ("=Q", ("nlookup",)),
    "batch_forget": ("=II", ("count", "")),
    "interrupt": ("=Q", ("target",)),
    "fallocate": ("=QQQII", ("fh", "offset", "length", "mode", "")),
    "copy_file_range": _COPY,
    "copy_file_range_64": _COPY,
    "getlk": _LOCK,
    "setlk": _LOCK,
    "setlkw": _LOCK,
    "bmap": ("=QII", ("block", "blocksize", "")),
    "ioctl": ("=QIIQII", ("fh", "flags", "cmd", "arg", "in_size", "out_size")),
    "poll": ("=QQII", ("fh", "kh", "flags", "events")),
    "lseek": ("=QQII", ("fh", "offset", "whence", "")),
    "notify_reply": ("=QQIIQQ", ("", "offset", "size", "", "", "")),
    "statx": ("=IIQII", ("flags", "", "fh", "sx_flags", "sx_mask")),
    "init": ("=IIII", ("major", "minor", "max_readahead", "flags")),
}  # fmt: skip


@dataclass
class Request:
    """A request as read from the device."""

    opcode: str
    unique: int
    nodeid: int
    uid: int
    gid: int
    fields: dict[str, int] = field(default_factory=dict)
    rest: bytes = b""
    pid: int = 0

    def __getattr__(self, name: str) -> int:
        try:
            value: int = self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None
        return value

    def __reduce__(self) -> Any:
        return (
            Request,
            (
                self.opcode,
                self.unique,
                self.nodeid,
                self.uid,
                self.gid,
                self.fields,
                self.rest,
                self.pid,
            ),
        )

    @property
    def names(self) -> list[bytes]:
        """The request's names, without their NULs."""
        return self.rest.split(b"\0")[:-1]

    @property
    def name(self) -> bytes:
        """The request's first name, or an empty one."""
        if self.opcode == "setxattr":
            return self.rest.partition(b"\0")[0]
        named = "lookup mknod mkdir unlink rmdir rename rename2 link create symlink"
        named += " getxattr removexattr tmpfile"
        return self.names[0] if self.opcode in named.split() else b""


def parse(raw: bytes) -> Request:
    """Parse a request."""
    _, opcode, unique, nodeid, uid, gid, pid, extra, _ = _IN.unpack_from(raw)
    name = OPCODES.get(opcode, str(opcode))
    request = Request(name, unique, nodeid, uid, gid, pid=pid)
    body = raw[_IN.size : len(raw) - 8 * extra]
    if name in _FIXED:
        layout, names = _FIXED[name]
        values = struct.unpack_from(layout, body)
        request.fields = {n: v for n, v in zip(names, values, strict=True) if n}
        body = body[struct.calcsize(layout) :]
    request.rest = body
    return request


def forgets(request: Request) -> list[tuple[int, int]]:
    """Return the (nodeid, lookups) of a FORGET or BATCH_FORGET."""
    if request.opcode == "forget":
        return [(request.nodeid, request.nlookup)]
    return [struct.unpack_from("=QQ", request.rest, 16 * i) for i in range(request.count)]


def reply(unique: int, error: int, body: bytes = b"") -> bytes:
    """Build an answer; *error* is 0 or a positive errno."""
    return _OUT.pack(_OUT.size + len(body), -error, unique) + body


def notification(code: int, body: bytes) -> bytes:
    """Build a notification of the daemon."""
    return _OUT.pack(_OUT.size + len(body), code, 0) + body


def inval_inode(nodeid: int, offset: int, length: int) -> bytes:
    return notification(2, struct.pack("=Qqq", nodeid, offset, length))


def inval_entry(parent: int, name: bytes) -> bytes:
    return notification(3, struct.pack("=QII", parent, len(name), 0) + name + b"\0")


def delete(parent: int, child: int, name: bytes) -> bytes:
    return notification(6, struct.pack("=QQII", parent, child, len(name), 0) + name + b"\0")


def store(nodeid: int, offset: int, data: bytes) -> bytes:
    return notification(4, struct.pack("=QQII", nodeid, offset, len(data), 0) + data)


def resend() -> bytes:
    """Have the kernel put all requests that were read and not answered back into their queues."""
    return notification(7, b"")


def inc_epoch() -> bytes:
    return notification(8, b"")


def _time(seconds: float) -> tuple[int, int]:
    ns = int(seconds * 10**9)
    return ns // 10**9, ns % 10**9


def attributes(ino: int, size: int, times_ns: tuple[int, int, int], mode: int, nlink: int,
               uid: int, gid: int, rdev: int = 0) -> bytes:  # fmt: skip
    """Build a struct fuse_attr; *times_ns* are atime, mtime, ctime."""
    seconds = [t // 10**9 for t in times_ns]
    rest = [t % 10**9 for t in times_ns]
    return struct.pack(
        "=QQQQQQIIIIIIIIII",
        ino, size, -(-size // 512), *seconds, *rest, mode, nlink, uid, gid, rdev, 4096, 0,
    )  # fmt: skip


def entry(
    nodeid: int, generation: int, entry_timeout: float, attr_timeout: float, attr: bytes
) -> bytes:
    """Build a struct fuse_entry_out."""
    (entry_s, entry_ns), (attr_s, attr_ns) = _time(entry_timeout), _time(attr_timeout)
    head = struct.pack("=QQQQII", nodeid, generation, entry_s, attr_s, entry_ns, attr_ns)
    return head + attr


def attr_out(attr_timeout: float, attr: bytes) -> bytes:
    """Build a struct fuse_attr_out."""
    return struct.pack("=QII", *_time(attr_timeout), 0) + attr


def statx_out(attr_timeout: float, attr: bytes) -> bytes:
    """Build a struct fuse_statx_out, with the attributes of a struct fuse_attr and no btime."""
    found = struct.unpack("=QQQQQQIIIIIIIIII", attr)
    ino, size, blocks, *times, mode, nlink, uid, gid, _, blksize, _ = found
    atime, mtime, ctime = zip(times[:3], times[3:], strict=True)
    stat = struct.pack(
        "=IIQIIIHHQQQQ",
        STATX_BASIC_STATS,
        blksize,
        0,
        nlink,
        uid,
        gid,
        mode,
        0,
        ino,
        size,
        blocks,
        0,
    )
    stat += b"".join(struct.pack("=qIi", *time, 0) for time in (atime, (0, 0), ctime, mtime))
    return struct.pack("=QIIQQ", *_time(attr_timeout), 0, 0, 0) + stat + bytes(16 + 14 * 8)


def open_out(fh: int, open_flags: int, backing_id: int = 0) -> bytes:
    """Build a struct fuse_open_out."""
    return struct.pack("=QIi", fh, open_flags, backing_id)


def ioctl_out(result: int) -> bytes:
    """Build a struct fuse_ioctl_out."""
    return struct.pack("=iIII", result, 0, 0, 0)


def dirent(ino: int, offset: int, name: bytes, kind: int) -> bytes:
    """Build a struct fuse_dirent with its padding."""
    raw = struct.pack("=QQII", ino, offset, len(name), kind) + name
    return raw + bytes(-len(raw) % 8)


def init_out(flags: int, max_stack_depth: int = 0, max_write: int = 131072) -> bytes:
    """Build a struct fuse_init_out; *flags* has both flag words."""
    low, high = flags & 0xFFFFFFFF, flags >> 32
    limits = (64, 48, max_write, 1, 32, 0)
    return struct.pack(
        "=IIIIHHIIHHII6I", 7, 36, 131072, low, *limits, high, max_stack_depth, *[0] * 6
    )
