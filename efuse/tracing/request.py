# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decode an answered request, as ``trace.c`` emits it. Pure: no system calls."""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from efuse import opcodes

__all__ = ["PATHS", "REASONS", "Request"]

PATHS: Mapping[int, str] = MappingProxyType(
    {
        1: "daemon",
        2: "direct",
        3: "cache",
        4: "device",
        5: "handler",
        6: "refusal",
        7: "kernel",
    }
)
"""What answered a request: the values of ``enum efuse_path`` and ``enum efuse_answered_by``."""

REASONS: Mapping[int, str] = MappingProxyType(
    {
        5: "miss",
        6: "stale",
        7: "expired",
        8: "other_uid",
        9: "not_alive",
        10: "no_handler",
        11: "declined",
        12: "invalid_verdict",
        13: "unmapped",
        14: "failed",
    }
)
"""Why a request went to the daemon: the values of ``enum efuse_counter`` that are reasons."""

ENTRY_ANSWERS = ("lookup", "mknod", "mkdir", "symlink", "link", "create", "tmpfile")
"""Opcodes whose answer begins with a ``struct fuse_entry_out``."""

_PARTIAL, _BACKGROUND, _DIGESTED = 1, 2, 4
_IN_BYTES, _OUT_BYTES = 64, 128
_REQUEST = struct.Struct(f"=QQQQqIIIIIBBBxHHHH16s{_IN_BYTES}s{_OUT_BYTES}s")

# Where the request's first argument has the second inode, the offset and the size, in bytes.
_COPIES = ("copy_file_range", "copy_file_range_64")
_NEWDIR = {"rename": 0, "rename2": 0, "link": 0, **dict.fromkeys(_COPIES, 16)}
_OFFSET = dict.fromkeys(
    ("read", "readdir", "readdirplus", "write", "fallocate", "lseek", *_COPIES), 8
)
_SIZE = {
    "read": ("=I", 16),
    "readdir": ("=I", 16),
    "readdirplus": ("=I", 16),
    "write": ("=I", 16),
    "fallocate": ("=Q", 16),
    **dict.fromkeys(_COPIES, ("=Q", 40)),
    "getxattr": ("=I", 0),
    "listxattr": ("=I", 0),
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request and its answer.

    :ivar time_ns: time of the answer, in ns of CLOCK_MONOTONIC.
    :ivar ns: time that the caller waited for the answer, in ns; None if the request began before
        the trace.
    :ivar connection: number of the mount's connection.
    :ivar opcode: name of the opcode (`efuse.opcodes`).
    :ivar nodeid: nodeid of the inode, or of the directory that a name is in.
    :ivar names: name of the entry or of the extended attribute, if the request has one. RENAME adds
        the new name, SYMLINK the target.
    :ivar pid: process id of the caller; 0 for the kernel itself.
    :ivar thread: thread id of the caller; 0 for the kernel itself.
    :ivar uid: user id of the caller; 0 for the kernel itself.
    :ivar comm: name of the caller's thread; empty if it is unknown.
    :ivar path: what answered the request: one of ``PATHS``.
    :ivar reason: why it went to the daemon: one of ``REASONS``. ``partial`` if the daemon or
        another path answered a part of it. Else empty.
    :ivar ret: result for the caller: a number of bytes, 0, or a negative errno.
    :ivar background: whether no caller waited for the request.
    :ivar arguments: first 64 bytes of the request's first argument.
    :ivar answer: first 128 bytes of the first part of the answer.
    :ivar digest: digest of the answer's data: its size and its first 4 KiB; None if none was taken.
    """

    time_ns: int
    ns: int | None
    connection: int
    opcode: str
    nodeid: int
    names: tuple[bytes, ...] = ()
    pid: int = 0
    thread: int = 0
    uid: int = 0
    comm: str = ""
    path: str = "daemon"
    reason: str = ""
    ret: int = 0
    background: bool = False
    arguments: bytes = b""
    answer: bytes = b""
    digest: int | None = None

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the request in the bytes *raw*.

        :raises ValueError: *raw* is cut off.
        """
        if len(raw) < _REQUEST.size:
            raise ValueError(f"a request has {_REQUEST.size} bytes or more, not {len(raw)}")
        (
            time_ns, ns, nodeid, digest, ret, connection, opcode, pid, thread, uid, by, why, flags,
            first, second, in_bytes, out_bytes, comm, arguments, answer,
        ) = _REQUEST.unpack_from(raw)  # fmt: skip
        names = raw[_REQUEST.size :]
        if len(names) < first + second:
            raise ValueError("the names of a request are cut off")
        found = (names[:first], names[first : first + second])
        return cls(
            time_ns=time_ns,
            ns=ns or None,
            connection=connection,
            opcode=opcodes.name(opcode),
            nodeid=nodeid,
            names=tuple(name for name in found if name),
            pid=pid,
            thread=thread,
            uid=uid,
            comm=comm.partition(b"\0")[0].decode(errors="replace"),
            path=PATHS.get(by, f"path_{by}"),
            reason="partial" if flags & _PARTIAL else REASONS.get(why, ""),
            ret=ret,
            background=bool(flags & _BACKGROUND),
            arguments=arguments[:in_bytes],
            answer=answer[:out_bytes],
            digest=digest if flags & _DIGESTED else None,
        )

    @property
    def error(self) -> str:
        """Name of the error; empty if the request succeeded.

        A LOOKUP that found nothing counts as ENOENT, even if the daemon answered it with nodeid 0.
        """
        if self.opcode == "lookup" and self.ret >= 0 and len(self.answer) >= 8 and not self.child:
            return "ENOENT"
        return errno.errorcode.get(-self.ret, f"errno {-self.ret}") if self.ret < 0 else ""

    @property
    def offset(self) -> int | None:
        """Start of the range in the file, in bytes; None if the request has no range."""
        return self._number("=Q", _OFFSET.get(self.opcode))

    @property
    def size(self) -> int | None:
        """Number of bytes to read, write or return; None if the request has no size."""
        layout, at = _SIZE.get(self.opcode, ("", None))
        return self._number(layout, at)

    @property
    def other(self) -> int | None:
        """Second inode: new directory of RENAME, old inode of LINK, target of a copy; else None."""
        return self._number("=Q", _NEWDIR.get(self.opcode))

    @property
    def child(self) -> int | None:
        """Inode that the request looked up or created; None if there is none."""
        if self.opcode not in ENTRY_ANSWERS or self.ret < 0 or len(self.answer) < 8:
            return None
        return int.from_bytes(self.answer[:8], "little") or None

    def _number(self, layout: str, at: int | None) -> int | None:
        if at is None or at + struct.calcsize(layout) > len(self.arguments):
            return None
        return int(struct.unpack_from(layout, self.arguments, at)[0])
