# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Hypothesis state machine over two mounts of one source, in `cto` or in `ttl` mode.

Each mount changes files behind the other one. So a mount may show an old state, but only within
limits, which the model knows:

* Nothing is older than the timeout. A value that a mount still believes came with an earlier call,
  which ended no longer ago than the timeout.
* A mount never goes back: what it has shown once, it does not show older again. Its own changes
  count as shown.
* In `cto`, a file that was opened has the content and the attributes that it had then, or newer
  ones.
"""

from __future__ import annotations

import errno
import itertools
import os
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.guest.support.daemons import eventually

T = TypeVar("T")

TIMEOUT_S = 0.3
# A timeout ends at a tick of the kernel's clock: 4 ms, and one more for rounding.
_TICKS_S = 0.01
_NAMES = ("a", "b")
_XATTR = "user.x"
_STAMP = struct.Struct("=QQ")
_COPIES = 4

names = st.sampled_from(_NAMES)
sides = st.sampled_from((0, 1))


@dataclass
class _Version:
    """A value that was true from some moment within a call."""

    value: Any
    begun: float


@dataclass
class Timeline:
    """The values of something over time, and the last one that each mount has shown.

    :ivar what: what it is, for messages.
    """

    what: str
    versions: list[_Version]
    shown: list[int] = field(default_factory=lambda: [0, 0])
    ends: list[float] = field(default_factory=list)

    def set(self, side: int, value: Any, begun: float) -> None:
        """Note a change through a mount by a call that began at *begun* and has ended."""
        self.ends.append(time.monotonic())
        self.versions.append(_Version(value, begun))
        self.shown[side] = len(self.versions) - 1

    @property
    def value(self) -> Any:
        return self.versions[-1].value

    def see(self, side: int, value: Any, since: float) -> None:
        """Check a value that a mount shows.

        :param since: the moment from which on the mount may believe a value.
        """
        first = self.shown[side]
        # Version n was true until the change to version n + 1 ended, at the latest.
        while first < len(self.ends) and self.ends[first] < since:
            first += 1
        allowed = {n: v.value for n, v in enumerate(self.versions) if n >= first}
        matching = [n for n, candidate in allowed.items() if candidate == value]
        assert matching, (
            f"mount {side} shows {value} as {self.what}; it may be one of {allowed}, "
            f"it has shown number {self.shown[side]} of {len(self.versions)} before"
        )
        self.shown[side] = min(matching)

    def may_be(self, side: int, value: Any, since: float) -> bool:
        """Return whether a mount may show a value."""
        first = self.shown[side]
        while first < len(self.ends) and self.ends[first] < since:
            first += 1
        return any(version.value == value for version in self.versions[first:])


@dataclass
class _File:
    number: int
    keep: int
    content: Timeline
    mode: Timeline
    size: Timeline
    xattr: Timeline


class SharedSource(RuleBasedStateMachine):
    """Calls on two mounts of one source. A subclass has the places.

    :cvar mode: consistency of both mounts.
    :cvar mounts: the mounts.
    :cvar source: the directory that they show.
    :cvar steps: how many calls were made, of all examples.
    """

    mode: str
    mounts: tuple[Path, Path]
    source: Path
    steps = 0
    _numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self._name = f"{next(self._numbers)}"
        self._files: dict[int, _File] = {}
        self._stamps = itertools.count(1)
        self._calls: tuple[deque[tuple[float, float]], ...] = (deque(), deque())

    @initialize()
    def begin(self) -> None:
        (self.source / self._name).mkdir()
        now = time.monotonic()
        self._names = {name: Timeline(f"file of {name}", [_Version(0, now)]) for name in _NAMES}
        for name in _NAMES:
            self.create(0, name)

    def _call(self, side: int, call: Callable[[], T]) -> tuple[T | OSError, float, float]:
        """Make a call on a mount.

        :return: its result, the moment at which it began, and the one from which on its mount may
            believe a value.
        """
        type(self).steps += 1
        begun = time.monotonic()
        result: T | OSError
        try:
            result = call()
        except OSError as error:
            result = error
        calls = self._calls[side]
        while calls and calls[0][1] < begun - TIMEOUT_S - _TICKS_S:
            calls.popleft()
        since = min([begun, *(start for start, _ in calls)])
        calls.append((begun, time.monotonic()))
        return result, begun, since

    def _path(self, side: int, name: str) -> str:
        return f"{self.mounts[side]}/{self._name}/{name}"

    def _missing(self, side: int, name: str, since: float, result: object) -> bool:
        """Return whether a call failed because a name is missing, which must be possible."""
        if not isinstance(result, OSError):
            return False
        # ESTALE: the name is known, but its file has lost all names.
        assert result.errno in (errno.ENOENT, errno.ESTALE), result
        if result.errno == errno.ENOENT:
            self._names[name].see(side, 0, since)
        else:
            assert self._names[name].may_be(side, 0, since)
        return True

    def _found(self, ino: int) -> _File:
        assert ino in self._files, f"inode {ino} is unknown"
        return self._files[ino]

    # Changes

    @rule(side=sides, name=names)
    def create(self, side: int, name: str) -> None:
        path = self._path(side, name)
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
        result, begun, since = self._call(side, lambda: os.open(path, flags, 0o644))
        if isinstance(result, OSError):
            assert result.errno == errno.EEXIST, result
            there = {v.value for v in self._names[name].versions} - {0}
            assert any(self._names[name].may_be(side, ino, since) for ino in there)
            return
        # While the file below is open, no other file gets its number.
        keep = os.open(self.source / self._name / name, os.O_RDONLY)
        ino = os.fstat(keep).st_ino
        assert ino not in self._files, "a file was created over another one"
        data = self._data(ino)
        assert os.write(result, data) == len(data)
        os.close(result)

        def line(what: str, value: Any) -> Timeline:
            return Timeline(f"{what} of {ino}", [_Version(value, begun)])

        self._files[ino] = _File(
            ino,
            keep,
            line("content", data),
            line("mode", 0o100644),
            line("size", len(data)),
            line("xattr", None),
        )
        self._names[name].set(side, ino, begun)

    def _opened(self, side: int, name: str, flags: int) -> tuple[int, int] | None:
        """Open a file; return the descriptor and the inode number, or None if it is missing."""
        path = self._path(side, name)
        fd, _, since = self._call(side, lambda: os.open(path, flags))
        if self._missing(side, name, since, fd):
            return None
        assert isinstance(fd, int)
        ino = os.fstat(fd).st_ino
        self._names[name].see(side, ino, since)
        return fd, ino

    def _data(self, ino: int) -> bytes:
        """Return new content. Each of its parts tells the file and the version."""
        return _STAMP.pack(ino, next(self._stamps)) * _COPIES

    @rule(side=sides, name=names)
    def write(self, side: int, name: str) -> None:
        opened = self._opened(side, name, os.O_WRONLY)
        if opened is None:
            return
        fd, ino = opened
        data = self._data(ino)
        written, begun, _ = self._call(side, lambda: os.pwrite(fd, data, 0))
        os.close(fd)
        assert written == len(data)
        self._found(ino).content.set(side, data, begun)

    @rule(side=sides, name=names, more=st.integers(0, 3))
    def truncate(self, side: int, name: str, more: int) -> None:
        """Change the size, but leave the content."""
        size = _STAMP.size * _COPIES + more * 5000
        opened = self._opened(side, name, os.O_WRONLY)
        if opened is None:
            return
        fd, ino = opened
        result, begun, _ = self._call(side, lambda: os.ftruncate(fd, size))
        os.close(fd)
        assert result is None
        self._found(ino).size.set(side, size, begun)

    @rule(side=sides, name=names, mode=st.sampled_from((0o600, 0o640, 0o644, 0o666)))
    def chmod(self, side: int, name: str, mode: int) -> None:
        opened = self._opened(side, name, os.O_RDONLY)
        if opened is None:
            return
        fd, ino = opened
        result, begun, _ = self._call(side, lambda: os.fchmod(fd, mode))
        os.close(fd)
        assert result is None
        self._found(ino).mode.set(side, 0o100000 | mode, begun)

    @rule(side=sides, name=names)
    def setxattr(self, side: int, name: str) -> None:
        opened = self._opened(side, name, os.O_RDONLY)
        if opened is None:
            return
        fd, ino = opened
        value = b"%d" % next(self._stamps)
        result, begun, _ = self._call(side, lambda: os.setxattr(fd, _XATTR, value))
        os.close(fd)
        assert result is None
        self._found(ino).xattr.set(side, value, begun)

    @rule(side=sides, name=names)
    def unlink(self, side: int, name: str) -> None:
        path = self._path(side, name)
        result, begun, since = self._call(side, lambda: os.unlink(path))
        if not self._missing(side, name, since, result):
            self._follow(side, begun)

    @rule(side=sides)
    def rename(self, side: int) -> None:
        """Rename one of the names to the other one."""
        one, other = (self._path(side, name) for name in _NAMES)
        result, begun, since = self._call(side, lambda: os.rename(one, other))
        if not self._missing(side, _NAMES[0], since, result):
            # Nothing has happened if the mount believes that both names are one file.
            self._follow(side, begun)

    def _follow(self, side: int, begun: float) -> None:
        """Note how the names have changed in the source, by a call through a mount."""
        for name, line in self._names.items():
            try:
                ino = os.stat(self.source / self._name / name).st_ino
            except FileNotFoundError:
                ino = 0
            if ino != line.value:
                line.set(side, ino, begun)

    # Questions

    @rule(side=sides, name=names)
    def stat(self, side: int, name: str) -> None:
        found, _, since = self._call(side, lambda: os.stat(self._path(side, name)))
        if self._missing(side, name, since, found):
            return
        assert isinstance(found, os.stat_result)
        self._names[name].see(side, found.st_ino, since)
        self._see_attributes(side, found, since)

    def _see_attributes(self, side: int, found: os.stat_result, since: float) -> None:
        file = self._found(found.st_ino)
        file.mode.see(side, found.st_mode, since)
        file.size.see(side, found.st_size, since)

    @rule(side=sides, name=names)
    def getxattr(self, side: int, name: str) -> None:
        opened = self._opened(side, name, os.O_RDONLY)
        if opened is None:
            return
        fd, ino = opened
        value, _, since = self._call(side, lambda: os.getxattr(fd, _XATTR))
        os.close(fd)
        if isinstance(value, OSError):
            assert value.errno == errno.ENODATA, value
        self._found(ino).xattr.see(side, None if isinstance(value, OSError) else value, since)

    @rule(side=sides, name=names)
    def read(self, side: int, name: str) -> None:
        """Open a file, and read it."""
        path = self._path(side, name)
        fd, opened, since = self._call(side, lambda: os.open(path, os.O_RDONLY))
        if self._missing(side, name, since, fd):
            return
        assert isinstance(fd, int)
        found, _, since_stat = self._call(side, lambda: os.fstat(fd))
        data, _, since_read = self._call(side, lambda: os.pread(fd, 1 << 16, 0))
        os.close(fd)
        assert isinstance(found, os.stat_result) and isinstance(data, bytes)
        self._names[name].see(side, found.st_ino, since)
        if self.mode == "cto":
            since_stat = since_read = opened
        self._see_attributes(side, found, since_stat)
        file, length = self._found(found.st_ino), _STAMP.size * _COPIES
        file.content.see(side, data[:length], since_read)
        assert not data[length:].strip(b"\0"), "bytes behind the content"
        file.size.see(side, len(data), since_read)

    @rule(side=sides)
    def list(self, side: int) -> None:
        found, _, since = self._call(side, lambda: os.listdir(self._path(side, "")))
        assert isinstance(found, list)
        for name, line in self._names.items():
            if name not in found:
                assert line.may_be(side, 0, since), f"{name} is missing in {found}"
            else:
                there = {version.value for version in line.versions} - {0}
                assert any(line.may_be(side, ino, since) for ino in there), f"{name} in {found}"

    @rule(side=sides, name=names)
    def outlast(self, side: int, name: str) -> None:
        """Wait until a mount shows the present state, as it must when all timeouts have ended."""
        truth = self._names[name].value

        def shown() -> bool:
            self.stat(side, name)
            self.list(side)
            line = self._names[name]
            return bool(line.versions[line.shown[side]].value == truth)

        eventually(shown, f"mount {side} shows {name}")

    def teardown(self) -> None:
        for file in self._files.values():
            os.close(file.keep)
