# SPDX-License-Identifier: LGPL-2.1-or-later
"""The record of a random schedule: what was called when, and whether the results were right."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.guest.support.history import FOREVER, Bytes, Change, Register, Version, ViolationError
from tests.guest.support.model_file_system import Inode, ModelFileSystem
from tests.guest.support.schedule_operations import (
    FILES,
    FIRST_VALUE,
    NAMES,
    SIZE,
    XATTR,
    Operation,
)
from tests.guest.support.wire import Request

_READS = ("read", "read_direct", "read_opened", "load")
_WRITES = ("write", "write_direct", "store", "daemon_write")
_CUTS = ("truncate", "daemon_truncate")
_MADE = ("link", "mkdir", "symlink", "create")
_ATTRIBUTE = XATTR.encode()
DAEMON = "daemon"
"""The caller of a change that the daemon makes by itself."""


@dataclass
class Call:
    """An operation of a worker, or a change that the daemon makes.

    :ivar operation: the operation.
    :ivar caller: what makes it, for messages.
    :ivar started: moment at which it started.
    :ivar ended: moment at which its result was there.
    :ivar good: whether it succeeded.
    :ivar result: what it returned, or its errno.
    :ivar change: the bytes that it changes.
    :ivar versions: the values that the daemon has set for it.
    """

    operation: Operation
    caller: str
    started: int
    ended: int = FOREVER
    good: bool = True
    result: Any = None
    change: Change | None = None
    versions: list[Version[Any]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.caller}: {self.operation}"


class Record:
    """What happened, in order. The results are checked when the schedule is over, by `check`.

    :param model: the daemon's file system.
    :param inos: inode numbers of the files.
    :param directory: path of the directory of names.
    :param known_ends: whether the daemon knows the size of each file.
    """

    def __init__(
        self, model: ModelFileSystem, inos: list[int], directory: str, *, known_ends: bool
    ) -> None:
        self.now = 0
        self.lines: list[str] = []
        self._model = model
        self._known_ends = known_ends
        self._inos = inos
        self._directory = directory
        self._bytes = [Bytes(SIZE, FIRST_VALUE) for _ in FILES]
        self._registers: dict[tuple[str, Any], Register[Any]] = {}
        self._calls: list[Call] = []
        self._appends: list[tuple[Call, int, int]] = []
        self._observe([])

    def note(self, what: str) -> None:
        """Begin a new moment, and note what happens in it."""
        self.now += 1
        self.lines.append(f"{self.now:4} {what}")

    def start(self, operation: Operation, caller: str) -> Call:
        """Note that a call starts."""
        self.note(f"{caller}: {operation}")
        call = Call(operation, caller, self.now)
        self._calls.append(call)
        low, high = operation.at, operation.at + operation.length
        if operation.kind in _WRITES:
            self._change(call, low, high, operation.value)
        elif operation.kind in _CUTS:
            self._change(call, low, FOREVER, 0)
        elif operation.kind == "open_truncated":
            self._change(call, 0, FOREVER, 0)
        return call

    def _change(self, call: Call, low: int, high: int, value: int) -> None:
        change = Change(low, high, value, call.started)
        call.change = self._bytes[call.operation.file].add(change)

    def arrive(self, call: Call | None, request: Request) -> None:
        """Note that a request of a call has reached the daemon, or one without a call."""
        whose = call.caller if call else "-"
        where = f"{request.offset:#x}+{request.size:#x}" if "offset" in request.fields else ""
        self.note(f"{whose} -> {request.opcode} {request.nodeid} {request.name!r} {where}")
        if call and call.operation.kind == "append" and request.opcode == "write":
            self._change(call, request.offset, request.offset + request.size, call.operation.value)

    def apply(self, call: Call | None, request: Request) -> None:
        """Note that the daemon has handled a request."""
        whose = call.caller if call else "-"
        self.note(f"{whose} == {request.opcode}")
        if call and call.change and self._is_the_change(call.change, request):
            call.change.applied = self.now
            if call.operation.kind == "append":
                self._appends.append((call, request.offset, self.now))
        self._observe(call.versions if call else [])

    @staticmethod
    def _is_the_change(change: Change, request: Request) -> bool:
        """Return whether a request carries out all of a change."""
        if request.opcode == "write":
            return (change.low, change.high) == (request.offset, request.offset + request.size)
        return request.opcode in ("setattr", "open") and change.high == FOREVER

    def apply_own(self, call: Call) -> None:
        """Note that the daemon has made a change of its own."""
        if call.change:
            call.change.applied = self.now
        self._observe(call.versions)

    def end(self, call: Call, good: bool, result: Any) -> None:
        """Note the result of a call."""
        shown = f"{len(result)} bytes" if isinstance(result, bytes) else result
        if not good:
            shown = errno.errorcode[result]
        self.note(f"{call.caller} <- {call.operation.kind}: {shown}")
        call.ended, call.good, call.result = self.now, good, result
        for version in call.versions:
            version.ended = self.now
        if call.change:
            call.change.ended = self.now

    def _observe(self, versions: list[Version[Any]]) -> None:
        """Add a version of each register whose value has changed."""
        for key, value in self._values():
            register = self._registers.get(key)
            if register is None:
                self._registers[key] = Register([Version(value, -1, -1)])
            elif register.value != value:
                versions.append(register.set(value, self.now))

    def _values(self) -> list[tuple[tuple[str, Any], Any]]:
        names = self._model.walk(self._directory).entries
        found: list[tuple[tuple[str, Any], Any]] = [
            (("name", name), names.get(name.encode(), 0)) for name in NAMES
        ]
        for ino in self._inos:
            inode = self._model.get(ino)
            found.append((("size", ino), len(inode.data)))
            found.append((("mode", ino), inode.mode))
            found.append((("xattr", ino), inode.xattrs.get(_ATTRIBUTE)))
        return found

    def check(self) -> None:
        """Check the results of all calls.

        :raises ViolationError: a result is one that no order allows.
        """
        self._see_attributes()
        for call in self._calls:
            checker: Callable[[Call], None] | None
            checker = getattr(self, f"_check_{call.operation.kind}", None)
            if call.operation.kind in _READS:
                checker = self._check_data
            elif call.operation.kind in _MADE:
                checker = self._check_made
            try:
                if checker:
                    checker(call)
                elif not call.good:
                    raise ViolationError(f"it fails with {errno.errorcode[call.result]}")
            except ViolationError as violation:
                raise ViolationError(f"{call} (from {call.started}): {violation}") from violation
        if self._known_ends:
            for call, offset, moment in self._appends:
                ino = self._inos[call.operation.file]
                self._seen(("size", ino), offset, call.started, moment)

    def _see_attributes(self) -> None:
        """Note which values of extended attributes calls have seen, if callers have set them."""
        of_callers = {
            id(version)
            for call in self._calls
            if call.caller != DAEMON
            for version in call.versions
        }
        for call in self._calls:
            if call.operation.kind != "getxattr" or not call.good:
                continue
            register = self._registers["xattr", self._inos[call.operation.file]]
            if all(id(v) in of_callers for v in register.versions if v.value == call.result):
                register.see(call.result, call.ended)

    def _seen(self, key: tuple[str, Any], value: Any, started: int, ended: int) -> None:
        self._registers[key].check(" of ".join(map(str, key)), value, started, ended)

    def _within(self, call: Call, key: tuple[str, Any], value: Any) -> None:
        self._seen(key, value, call.started, call.ended)

    def _allowed(self, call: Call, key: tuple[str, Any]) -> list[Any]:
        return self._registers[key].allowed(call.started, call.ended)

    def _check_data(self, call: Call) -> None:
        if not call.good:
            raise ViolationError(f"it fails with {errno.errorcode[call.result]}")
        o = call.operation
        if o.kind != "load":
            sizes = self._allowed(call, ("size", self._inos[o.file]))
            lengths = {min(max(size - o.at, 0), o.length) for size in sizes}
            if len(call.result) not in lengths:
                raise ViolationError(f"{len(call.result)} bytes were read, not one of {lengths}")
        self._bytes[o.file].check(o.at, call.result, call.started, call.ended)

    def _check_stat(self, call: Call) -> None:
        ino, mode, size, _ = call.result
        self._within(call, ("mode", ino), mode)
        self._within(call, ("size", ino), size)

    _check_stat_forced = _check_stat

    def _check_getxattr(self, call: Call) -> None:
        ino = self._inos[call.operation.file]
        if not call.good and call.result != errno.ENODATA:
            raise ViolationError(f"it fails with {errno.errorcode[call.result]}")
        self._within(call, ("xattr", ino), call.result if call.good else None)

    def _check_removexattr(self, call: Call) -> None:
        if not call.good:
            self._check_getxattr(call)

    def _check_listxattr(self, call: Call) -> None:
        values = self._allowed(call, ("xattr", self._inos[call.operation.file]))
        if call.result not in [[XATTR] if value is not None else [] for value in values]:
            raise ViolationError(f"it returns {call.result}, but the values are {values}")

    def _inodes(self, call: Call, name: str) -> list[Inode | None]:
        """Return the inodes that a name may have had during a call; None: no such name."""
        numbers = self._allowed(call, ("name", name))
        return [self._model.get(ino) if ino else None for ino in numbers]

    def _fails_rightly(self, call: Call, name: str, allowed: tuple[int, ...]) -> None:
        """Check an errno that tells what a name is."""
        if call.result not in allowed:
            raise ViolationError(f"it fails with {errno.errorcode[call.result]}")
        reason = {
            errno.ENOENT: lambda inode: inode is None,
            errno.EEXIST: lambda inode: inode is not None,
            errno.EISDIR: lambda inode: inode is not None and stat.S_ISDIR(inode.mode),
            errno.ENOTDIR: lambda inode: inode is not None and not stat.S_ISDIR(inode.mode),
        }[call.result]
        inodes = self._inodes(call, name)
        if not any(map(reason, inodes)):
            raise ViolationError(
                f"it fails with {errno.errorcode[call.result]}, but {name} is {inodes}"
            )

    def _check_stat_name(self, call: Call) -> None:
        name = call.operation.name
        if not call.good:
            self._fails_rightly(call, name, (errno.ENOENT,))
            return
        self._within(call, ("name", name), call.result[0])
        if call.result[0] in self._inos:
            self._check_stat(call)

    def _check_made(self, call: Call) -> None:
        if not call.good:
            self._fails_rightly(call, call.operation.name, (errno.EEXIST,))

    def _check_unlink(self, call: Call) -> None:
        if not call.good:
            self._fails_rightly(call, call.operation.name, (errno.ENOENT, errno.EISDIR))

    def _check_rmdir(self, call: Call) -> None:
        if not call.good:
            self._fails_rightly(call, call.operation.name, (errno.ENOENT, errno.ENOTDIR))

    def _check_rename(self, call: Call) -> None:
        if not call.good:
            missing = call.result == errno.ENOENT
            name = call.operation.name if missing else call.operation.other
            self._fails_rightly(call, name, (errno.ENOENT, errno.EISDIR, errno.ENOTDIR))

    def _check_list(self, call: Call) -> None:
        for name in NAMES:
            there = [bool(ino) for ino in self._allowed(call, ("name", name))]
            if (name in call.result) not in there:
                raise ViolationError(f"{name} is in {call.result}: it should be {there}")
        if set(call.result) - set(NAMES):
            raise ViolationError(f"it shows {call.result}")
