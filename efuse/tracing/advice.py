# SPDX-License-Identifier: LGPL-2.1-or-later
"""Estimate which of the traced requests eFuse would have answered. Pure: no system calls.

The rules of docs/coherence.md apply, in ``exclusive`` mode. A request counts as a hit if the same
was asked before, by the same user where that matters, no request on the mount has voided the answer
since, and the daemon gave the same answer again.

Some hits are left out: an answer can serve another question (the attributes in a LOOKUP answer a
GETATTR), and a READ can be served from blocks that READs of other ranges left. The kernel keeps no
answer that does not fit into a map, and of the errors only those that say that a name or an
extended attribute does not exist.
"""

from __future__ import annotations

import errno
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from efuse.tracing import protocol
from efuse.tracing.names import Names
from efuse.tracing.request import Request

__all__ = ["NEEDS", "Advice", "Advisor", "OpcodeAdvice"]

NEEDS: Mapping[str, str] = MappingProxyType(
    {"open": "no_open", "opendir": "no_open", "flush": "no_flush"}
)
"""Declaration that a file system has to make before the kernel answers this opcode."""

# Something that answers depend on and that requests change: (kind, nodeid, name).
_Thing = tuple[str, int, bytes]
_Question = tuple[Any, ...]

# Answers to these depend on the caller.
_CALLER_ASKED = (
    *("lookup", "access", "open", "opendir"),
    *("getxattr", "listxattr", "readlink"),
)
# The kernel keeps these errors, learn.c; it keeps no other one.
_ABSENT = {"lookup": -errno.ENOENT, "getxattr": -errno.ENODATA}
# What fits into a map: EFUSE_NAME_LEN with its NUL, EFUSE_BLOB_LEN of the kernel.
_NAME_BYTES = 255
_BLOB_BYTES = 976
_BLOBS = ("getxattr", "listxattr", "readlink")
# A daemon may free space at any time: EFUSE_VOLUME_NS of the kernel.
_VOLUME_NS = 10_000_000_000
# Answered by these, a request reaches neither the daemon nor a file, and changes nothing.
_ANSWERED_FROM_MAPS = ("cache", "handler", "refusal", "kernel")
_ENTRY_MADE = ("create", "mknod", "mkdir", "symlink", "link")


@dataclass(frozen=True)
class OpcodeAdvice:
    """Estimate for one opcode, or for all opcodes together.

    :ivar requests: answered requests.
    :ivar in_kernel: requests that the kernel already answers.
    :ivar repeats: requests to the daemon that had been asked before.
    :ivar same: repeats that got the same answer as the time before.
    :ivar changed: repeats that got another answer, although no request on the mount voided the
        first.
    :ivar hits: requests to the daemon that eFuse would have answered.
    :ivar daemon_ns: total time that callers waited for the daemon, in ns.
    :ivar saved_ns: part of ``daemon_ns`` that was spent on hits, in ns.
    """

    requests: int = 0
    in_kernel: int = 0
    repeats: int = 0
    same: int = 0
    changed: int = 0
    hits: int = 0
    daemon_ns: int = 0
    saved_ns: int = 0

    @property
    def daemon(self) -> int:
        """Number of requests that the daemon answered."""
        return self.requests - self.in_kernel

    @property
    def hit_ratio(self) -> float | None:
        """Share of the daemon's requests that would be hits, 0 to 1; None if there were none."""
        return self.hits / self.daemon if self.daemon else None

    def __add__(self, other: OpcodeAdvice) -> OpcodeAdvice:
        return OpcodeAdvice(
            *(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__)
        )

    def json(self) -> dict[str, Any]:
        """Return all fields as an object for JSON."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**fields, "hit_ratio": self.hit_ratio}


@dataclass(frozen=True)
class Advice:
    """Estimate of what eFuse would save on a mount.

    :ivar seconds: how long the mount was watched.
    :ivar opcodes: estimate for each opcode, by name.
    :ivar lost: number of requests that the trace missed.
    """

    seconds: float
    opcodes: Mapping[str, OpcodeAdvice] = field(default_factory=dict)
    lost: int = 0

    @property
    def total(self) -> OpcodeAdvice:
        """Estimate for all opcodes together."""
        return sum(self.opcodes.values(), OpcodeAdvice())

    @property
    def declared(self) -> OpcodeAdvice:
        """Estimate for the opcodes whose hits need a declaration of the file system: `NEEDS`."""
        return sum((a for name, a in self.opcodes.items() if name in NEEDS), OpcodeAdvice())

    def json(self) -> dict[str, Any]:
        """Return all fields as an object for JSON."""
        return {
            "seconds": round(self.seconds, 3),
            "opcodes": {name: a.json() for name, a in sorted(self.opcodes.items())},
            "total": self.total.json(),
            "declared": self.declared.json(),
            "lost": self.lost,
        }


@dataclass(frozen=True)
class _Kept:
    answer: Any
    asked_ns: int
    ends_ns: float
    depends: tuple[_Thing, ...]


class Advisor:
    """Take requests in the order of their answers, and estimate what eFuse would have answered."""

    def __init__(self) -> None:
        # By opcode, the fields of OpcodeAdvice.
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._kept: dict[_Question, _Kept] = {}
        self._changed_ns: dict[_Thing, int] = {}
        # By nodeid and handle, since when a file has been open.
        self._opened_ns: dict[tuple[int, int], int] = {}
        self._names = Names()

    def add(self, request: Request) -> None:
        """Add one request to the estimate."""
        count = self._counts[request.opcode]
        count["requests"] += 1
        if request.answered_by == "daemon":
            count["daemon_ns"] += request.ns or 0
            self._compare(request, count)
        else:
            count["in_kernel"] += 1
        for thing in self._changes(request):
            self._changed_ns[thing] = request.time_ns
        self._open(request)
        self._names.learn(request)

    def advice(self, seconds: float, lost: int = 0) -> Advice:
        """Return the estimate from the requests so far.

        :param seconds: how long the mount was watched.
        :param lost: number of requests that the trace missed.
        """
        found = {name: OpcodeAdvice(**count) for name, count in self._counts.items()}
        return Advice(seconds, found, lost)

    def _compare(self, request: Request, count: Counter[str]) -> None:
        question = _question(request)
        if question is None:
            return
        answer = _answer(request)
        before = self._kept.get(question)
        asked_ns = request.time_ns - (request.ns or 0)
        lives_ns = _VOLUME_NS if request.opcode == "statfs" else float("inf")
        self._kept[question] = _Kept(
            answer, asked_ns, request.time_ns + lives_ns, tuple(_depends(request))
        )
        if before is None:
            return
        count["repeats"] += 1
        same = answer is not None and answer == before.answer
        count["same"] += same
        if any(self._changed_ns.get(thing, -1) >= before.asked_ns for thing in before.depends):
            return
        if same:
            if not _is_learned(request) or asked_ns >= before.ends_ns:
                return
            count["hits"] += 1
            count["saved_ns"] += request.ns or 0
        elif answer is not None:
            count["changed"] += 1

    def _changes(self, request: Request) -> Iterable[_Thing]:
        """Return what a request voids: the first table of docs/coherence.md."""
        if request.answered_by in _ANSWERED_FROM_MAPS or _is_unknown(request):
            return []
        make = _CHANGES.get(request.opcode)
        things = list(make(request)) if make else []
        if request.names and request.opcode in ("unlink", "rmdir", "rename", "rename2"):
            ends = [(request.nodeid, request.names[0])]
            if len(request.names) > 1:
                ends.append((request.other or request.nodeid, request.names[1]))
            for parent, name in ends:
                child = self._names.child(parent, name)
                if child is not None:
                    things.append(("attributes", child, b""))
        if request.opcode in ("flush", "release") and self._is_written(request):
            things.append(("attributes", request.nodeid, b""))
        if request.ret == -errno.ESTALE:
            things.append(("identity", request.nodeid, b""))
        return things

    def _open(self, request: Request) -> None:
        """Note since when files have been open: of those with one handle, the first one."""
        if request.opcode == "release":
            self._opened_ns.pop((request.nodeid, request.handle), None)
        elif request.opcode == "open" and request.ret >= 0:
            where = (request.nodeid, request.handle)
            self._opened_ns.setdefault(where, request.time_ns)

    def _is_written(self, request: Request) -> bool:
        """Return whether the file of a FLUSH or RELEASE was written since it was opened."""
        opened_ns = self._opened_ns.get((request.nodeid, request.handle), 0)
        return self._changed_ns.get(("data", request.nodeid, b""), -1) >= opened_ns


def _is_unknown(request: Request) -> bool:
    """Return whether the reply means that the daemon does not know the request."""
    if request.opcode == "ioctl":
        raw = protocol.IOCTL_RESULT.raw(request.answer)
        result = int.from_bytes(raw, "little", signed=True)
        return -errno.ENOTTY in (request.ret, result) or request.ret == -errno.ENOSYS
    return request.ret == -errno.ENOSYS


def _is_learned(request: Request) -> bool:
    """Return whether eFuse keeps the answer."""
    if any(len(name) > _NAME_BYTES for name in request.names):
        return False
    if request.opcode == "lookup" and request.names in ((b".",), (b"..",)):
        return False
    if request.ret < 0:
        return request.ret == _ABSENT.get(request.opcode)
    if request.opcode in _BLOBS:
        # If only the size is asked for, it is in the answer.
        size = request.ret or protocol.XATTR_SIZE.number(request.answer) or 0
        return size <= _BLOB_BYTES
    return True


def _question(request: Request) -> _Question | None:
    """Return the identity of a request's question, or None if eFuse does not keep the answer."""
    opcode = request.opcode
    own: _Question
    if opcode in ("lookup", "getattr", "readlink", "statfs", "flush"):
        own = request.names
    elif opcode in ("getxattr", "listxattr"):
        own = (*request.names, request.size)
    elif opcode in ("access", "open", "opendir"):
        if opcode != "access" and request.flags & os.O_TRUNC:
            return None
        own = (request.flags,)
    elif opcode == "read":
        own = (request.offset, request.size)
    else:
        return None
    who = request.uid if opcode in _CALLER_ASKED else None
    return (opcode, request.nodeid, who, *own)


def _answer(request: Request) -> Any:
    """Return the answer without timeouts and handles, or None if it cannot be compared."""
    if request.ret < 0:
        return ("error", request.ret)
    if request.opcode == "lookup":
        fields = (protocol.ENTRY_NODEID, protocol.ENTRY_GENERATION, protocol.ENTRY_ATTR)
        return tuple(field.raw(request.answer) for field in fields)
    if request.opcode == "getattr":
        return protocol.ATTR.raw(request.answer)
    if request.opcode in ("open", "opendir"):
        return protocol.OPENED_FLAGS.raw(request.answer)
    if request.opcode in ("access", "flush"):
        return 0
    if request.opcode == "statfs":
        return protocol.STATFS.raw(request.answer)
    if request.opcode in ("getxattr", "listxattr") and request.size == 0:
        return protocol.XATTR_SIZE.raw(request.answer)
    return request.digest


def _depends(request: Request) -> Iterable[_Thing]:
    """Return what an answer depends on: the second table of docs/coherence.md."""
    nodeid = request.nodeid
    if request.opcode == "lookup":
        yield from ((("name", nodeid, name)) for name in request.names)
        yield "identity", nodeid, b""
        yield "rights", nodeid, b""
        if request.child is not None:
            yield "identity", request.child, b""
            yield "attributes", request.child, b""
            yield "atime", request.child, b""
        return
    for kind in {
        "getattr": ("attributes", "identity", "atime"),
        "getxattr": ("xattrs", "data", "identity") if request.ret >= 0 else ("xattrs", "identity"),
        "listxattr": ("xattrs", "data", "identity"),
        "readlink": ("data", "identity"),
        "access": ("rights", "identity"),
        "open": ("rights", "identity"),
        "opendir": ("rights", "identity"),
        "read": ("data", "identity"),
        "flush": ("data",),
    }.get(request.opcode, ()):
        yield kind, nodeid, b""
    if request.opcode == "statfs":
        yield "volume", 0, b""


def _all_of(*kinds: str, volume: bool = False) -> Callable[[Request], Iterable[_Thing]]:
    def things(request: Request) -> Iterable[_Thing]:
        for kind in kinds:
            yield kind, request.nodeid, b""
        if volume:
            yield "volume", 0, b""

    return things


def _setattr(request: Request) -> Iterable[_Thing]:
    yield from _all_of("data", "attributes", "atime", "xattrs", volume=True)(request)
    if request.flags & protocol.FATTR_RIGHTS:
        yield "rights", request.nodeid, b""


def _opened(request: Request) -> Iterable[_Thing]:
    if request.flags & os.O_TRUNC:
        yield from _all_of("data", "attributes", volume=True)(request)


def _copied(request: Request) -> Iterable[_Thing]:
    yield "atime", request.nodeid, b""
    if request.other is not None:
        yield "data", request.other, b""
        yield "attributes", request.other, b""
    yield "volume", 0, b""


def _entries(request: Request) -> Iterable[_Thing]:
    parents = (request.nodeid, request.other or request.nodeid)
    renamed = request.opcode in ("rename", "rename2")
    names = request.names[: 2 if renamed else 1]  # the second name of SYMLINK is the target
    for parent, name in zip(parents, names, strict=False):
        yield "name", parent, name
        yield "attributes", parent, b""
    if request.opcode == "link" and request.other is not None:
        # The daemon may have another nodeid for the new name.
        for kind in ("data", "attributes", "xattrs", "rights"):
            yield kind, request.other, b""
    yield "volume", 0, b""


_CHANGES: Mapping[str, Callable[[Request], Iterable[_Thing]]] = MappingProxyType(
    {
        **dict.fromkeys(("read", "readdir", "readdirplus", "readlink"), _all_of("atime")),
        **dict.fromkeys(("write", "fallocate"), _all_of("data", "attributes", volume=True)),
        "setattr": _setattr,
        "setupmapping": _all_of("data", "attributes", "atime", "xattrs", volume=True),
        "ioctl": _all_of("data", "attributes", "atime", "xattrs", "rights", volume=True),
        **dict.fromkeys(("setxattr", "removexattr"), _all_of("xattrs", "attributes", "rights")),
        **dict.fromkeys(("open", "opendir"), _opened),
        **dict.fromkeys(("flush", "release", "syncfs", "tmpfile"), _all_of(volume=True)),
        **dict.fromkeys(("fsync", "fsyncdir"), _all_of("attributes", volume=True)),
        **dict.fromkeys((*_ENTRY_MADE, "unlink", "rmdir", "rename", "rename2"), _entries),
        **dict.fromkeys(("copy_file_range", "copy_file_range_64"), _copied),
    }
)
