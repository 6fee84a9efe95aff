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
from efuse.tracing import protocol

__all__ = ["ANSWERED_BY", "REASONS", "Request"]

ANSWERED_BY: Mapping[int, str] = MappingProxyType(
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

_PARTIAL, _BACKGROUND, _DIGESTED = 1, 2, 4
_IN_BYTES, _OUT_BYTES = 64, 128
_REQUEST = struct.Struct(f"=QQQQqIIIIIBBBxHHHH16s{_IN_BYTES}s{_OUT_BYTES}s")


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
    :ivar answered_by: what answered the request: one of ``ANSWERED_BY``.
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
    answered_by: str = "daemon"
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
            time_ns, ns, nodeid, digest, ret, connection, opcode, pid, thread, uid, answered_by,
            why, flags, first, second, in_bytes, out_bytes, comm, arguments, answer,
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
            answered_by=ANSWERED_BY.get(answered_by, f"answered_by_{answered_by}"),
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
        return self._argument(protocol.OFFSET)

    @property
    def size(self) -> int | None:
        """Number of bytes to read, write or return; None if the request has no size."""
        return self._argument(protocol.SIZE)

    @property
    def flags(self) -> int:
        """Open flags, mask of rights of ACCESS, or attributes that SETATTR sets; else 0."""
        return self._argument(protocol.FLAGS) or 0

    @property
    def other(self) -> int | None:
        """Second inode: new directory of RENAME, old inode of LINK, target of a copy; else None."""
        return self._argument(protocol.OTHER_NODEID)

    @property
    def handle(self) -> int:
        """Handle that OPEN or OPENDIR returned, or that FLUSH or RELEASE is about; else 0."""
        field = protocol.HANDLE.get(self.opcode)
        if field is None:
            return 0
        return field.number(self.answer if field.struct.endswith("_out") else self.arguments) or 0

    @property
    def child(self) -> int | None:
        """Inode that the request looked up or created; None if there is none."""
        if self.opcode not in protocol.ENTRY_ANSWERS or self.ret < 0:
            return None
        return protocol.ENTRY_NODEID.number(self.answer) or None

    def _argument(self, fields: Mapping[str, protocol.Field]) -> int | None:
        field = fields.get(self.opcode)
        return field.number(self.arguments) if field else None
