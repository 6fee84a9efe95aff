# SPDX-License-Identifier: LGPL-2.1-or-later
"""A request that has its answer, as ``trace.c`` hands it over. Pure: no system call."""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from efuse import opcodes

__all__ = ["ENTRY_ANSWERS", "PATHS", "REASONS", "Request"]

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
"""Who answered: ``enum efuse_path``, ``enum efuse_by``."""

REASONS: Mapping[int, str] = MappingProxyType(
    {
        5: "miss",
        6: "stale",
        7: "expired",
        8: "other_uid",
        9: "not_alive",
        10: "no_handler",
        11: "declined",
        12: "garbage",
        13: "unmapped",
        14: "failed",
    }
)
"""Why it went to the daemon: of ``enum efuse_counter``."""

ENTRY_ANSWERS = ("lookup", "mknod", "mkdir", "symlink", "link", "create", "tmpfile")
"""The opcodes whose answer begins with a ``struct fuse_entry_out``."""

_PARTIAL, _BACKGROUND, _DIGESTED = 1, 2, 4
_IN_BYTES, _OUT_BYTES = 64, 128
_REQUEST = struct.Struct(f"=QQQQqIIIIIBBBxHHHH16s{_IN_BYTES}s{_OUT_BYTES}s")

# Where the first input argument has the second inode, an offset and a length: (format, offset).
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

    :ivar time_ns: when it was answered, by CLOCK_MONOTONIC.
    :ivar ns: how long its caller had no answer; None: it began before anybody watched.
    :ivar connection: of the mount.
    :ivar opcode: its name (`efuse.opcodes`).
    :ivar nodeid: the inode, or the directory of the name.
    :ivar names: of an entry, with RENAME the new one, too; with SYMLINK the target; of an extended
        attribute.
    :ivar pid: of the caller; 0: the kernel itself.
    :ivar thread: likewise.
    :ivar uid: likewise.
    :ivar comm: what the caller's thread calls itself; empty where that is not known.
    :ivar path: who answered: one of ``PATHS``.
    :ivar reason: why it went to the daemon: one of ``REASONS``; ``partial``: the daemon, or
        another path, helped out; empty.
    :ivar ret: what the caller gets: bytes, 0 or a negative errno.
    :ivar background: nobody waited for it.
    :ivar arguments: the first 64 bytes of its first argument.
    :ivar answer: the first 128 bytes of the answer's first part.
    :ivar digest: of the answer's data, its size and first 4 KiB; None: not taken.
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
        """Return the request that *raw* holds.

        :raises ValueError: it is cut off.
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
        """The error's name; empty where it succeeded.

        A LOOKUP that found nothing is one also where the daemon says so by an answer that is kept.
        """
        if self.opcode == "lookup" and self.ret >= 0 and len(self.answer) >= 8 and not self.child:
            return "ENOENT"
        return errno.errorcode.get(-self.ret, f"errno {-self.ret}") if self.ret < 0 else ""

    @property
    def offset(self) -> int | None:
        """Where in the file, in bytes; None where that is not asked."""
        return self._number("=Q", _OFFSET.get(self.opcode))

    @property
    def size(self) -> int | None:
        """How many bytes are asked for or written."""
        layout, at = _SIZE.get(self.opcode, ("", None))
        return self._number(layout, at)

    @property
    def other(self) -> int | None:
        """The second inode: RENAME's new directory, LINK's old inode, what is copied into."""
        return self._number("=Q", _NEWDIR.get(self.opcode))

    @property
    def child(self) -> int | None:
        """The inode that the answer found or made under the name; None: none."""
        if self.opcode not in ENTRY_ANSWERS or self.ret < 0 or len(self.answer) < 8:
            return None
        return int.from_bytes(self.answer[:8], "little") or None

    def _number(self, layout: str, at: int | None) -> int | None:
        if at is None or at + struct.calcsize(layout) > len(self.arguments):
            return None
        return int(struct.unpack_from(layout, self.arguments, at)[0])
