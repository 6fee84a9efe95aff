# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Hypothesis state machine over one exclusive mount.

Each call is made twice: below the mount, and in a reference directory on the lower file system. The
reference is the model: both calls have to return the same, or to fail with the same errno. After
each step the attributes and the bytes of what it has used have to be the same, and at the end of an
example everything has to be.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

PAGE = mmap.PAGESIZE
_PATHS = ("a", "b", "d", "d/a", "d/b", "e", "e/a")
_XATTRS = ("user.x", "user.y")
_FLAGS = (
    os.O_RDONLY,
    os.O_RDWR,
    os.O_RDWR | os.O_DIRECT,
    os.O_RDWR | os.O_APPEND,
    os.O_WRONLY | os.O_APPEND,
    os.O_RDWR | os.O_TRUNC,
    os.O_RDWR | os.O_CREAT,
    os.O_RDWR | os.O_CREAT | os.O_EXCL,
    os.O_RDONLY | os.O_NOFOLLOW,
)

paths = st.sampled_from(_PATHS)
"""Where a call takes place."""

places = st.sampled_from((0, 1, 100, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE + 7))
lengths = st.sampled_from((1, 7, 100, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE))
letters = st.integers(1, 255)


@dataclass
class OpenFile:
    """A file that is open in both places.

    :ivar fds: its descriptors: below the mount, and in the reference directory.
    :ivar flags: the flags of open(2).
    :ivar readable: whether it is a file that can be read.
    :ivar maps: its maps, in the same order, if it is mapped.
    """

    fds: tuple[int, int]
    flags: int
    readable: bool
    maps: list[mmap.mmap] = field(default_factory=list)

    def close(self) -> None:
        for memory in self.maps:
            memory.close()
        for fd in self.fds:
            os.close(fd)


class ExclusiveMount(RuleBasedStateMachine):
    """Calls on a mount and on a reference. A subclass has the places.

    :cvar mount: the mount.
    :cvar reference: an empty directory of the file system on which the mount's files are.
    :cvar steps: how many calls were made, of all examples.
    """

    mount: Path
    reference: Path
    steps = 0
    _numbers = itertools.count()

    files = Bundle("files")

    def __init__(self) -> None:
        super().__init__()
        self._open: list[OpenFile] = []
        self._used_paths: set[str] = set()
        self._used_files: list[OpenFile] = []
        name = f"{next(self._numbers)}"
        self._roots = self.mount / name, self.reference / name

    @initialize()
    def begin(self) -> None:
        for root in self._roots:
            (root / "d").mkdir(parents=True)
            for name in ("a", "d/b"):
                (root / name).write_bytes(name.encode() * 5000)

    def _both(self, call: Callable[..., Any], *sides: tuple[Any, Any]) -> Any:
        """Make a call in both places, and return its result, or None if it failed in both.

        :param sides: its arguments: for each a pair of what it is in either place.
        """
        type(self).steps += 1
        ours, reference = (self._outcome(call, *(pair[n] for pair in sides)) for n in (0, 1))
        assert ours == reference, f"the mount: {ours}, the reference: {reference}"
        return ours[1]

    @staticmethod
    def _outcome(call: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
        try:
            return "", call(*arguments)
        except OSError as error:
            return errno.errorcode[error.errno or 0], None

    def _at(self, path: str) -> tuple[str, str]:
        self._used_paths.add(path)
        one, other = (f"{root}/{path}" for root in self._roots)
        return one, other

    # Files

    @rule(target=files, path=paths, flags=st.sampled_from(_FLAGS))
    def open(self, path: str, flags: int) -> Any:
        fds: list[int] = []

        def opened(name: str, how: int) -> None:
            fds.append(os.open(name, how, 0o644))

        # The reference's file system needs aligned buffers for O_DIRECT, the mount does not.
        result = self._outcome(opened, self._at(path)[0], flags)
        true = self._outcome(opened, self._at(path)[1], flags & ~os.O_DIRECT)
        if result != true:
            for fd in fds:
                os.close(fd)
        assert result == true, f"the mount: {result}, the reference: {true}"
        if not fds:
            return multiple()
        is_file = stat.S_ISREG(os.fstat(fds[1]).st_mode)
        readable = is_file and flags & os.O_ACCMODE != os.O_WRONLY
        file = OpenFile((fds[0], fds[1]), flags, readable)
        self._open.append(file)
        return file

    @rule(file=consumes(files))
    def close(self, file: OpenFile) -> None:
        self._open.remove(file)
        file.close()

    def _fds(self, file: OpenFile) -> tuple[int, int]:
        self._used_files.append(file)
        return file.fds

    @rule(file=files, at=places, length=lengths)
    def read(self, file: OpenFile, at: int, length: int) -> None:
        self._both(lambda fd: os.pread(fd, length, at), self._fds(file))

    @rule(file=files, at=places, length=lengths, letter=letters)
    def write(self, file: OpenFile, at: int, length: int, letter: int) -> None:
        """With O_APPEND, pwrite(2) appends."""
        self._both(lambda fd: os.pwrite(fd, bytes([letter]) * length, at), self._fds(file))

    @rule(file=files, size=places)
    def cut(self, file: OpenFile, size: int) -> None:
        self._both(lambda fd: os.ftruncate(fd, size), self._fds(file))

    @rule(file=files)
    def fsync(self, file: OpenFile) -> None:
        self._both(os.fsync, self._fds(file))

    @rule(file=files)
    def fstat(self, file: OpenFile) -> None:
        self._both(lambda fd: _facts(os.fstat(fd)), self._fds(file))

    @rule(file=files)
    def map(self, file: OpenFile) -> None:
        found = os.fstat(file.fds[1])
        usable = stat.S_ISREG(found.st_mode) and file.flags & os.O_ACCMODE == os.O_RDWR
        if usable and found.st_size and not file.maps:
            file.maps = [mmap.mmap(fd, found.st_size) for fd in file.fds]

    @staticmethod
    def _mapped(file: OpenFile, at: int, length: int) -> slice | None:
        """Return the part of a range that the file still has. A page behind its end would kill."""
        if not file.maps:
            return None
        end = min(at + length, os.fstat(file.fds[1]).st_size, len(file.maps[1]))
        return slice(at, end) if at < end else None

    @rule(file=files, at=places, length=lengths)
    def load(self, file: OpenFile, at: int, length: int) -> None:
        part = self._mapped(file, at, length)
        if part:
            self._both(lambda memory: memory[part], (file.maps[0], file.maps[1]))

    @rule(file=files, at=places, length=lengths, letter=letters, flush=st.booleans())
    def store(self, file: OpenFile, at: int, length: int, letter: int, flush: bool) -> None:
        part = self._mapped(file, at, length)
        self._used_files.append(file)
        if part:
            for memory in file.maps:
                memory[part] = bytes([letter]) * (part.stop - part.start)
                if flush:
                    memory.flush()

    # Names

    @rule(path=paths, size=places)
    def truncate(self, path: str, size: int) -> None:
        self._both(lambda name: os.truncate(name, size), self._at(path))

    @rule(path=paths)
    def mkdir(self, path: str) -> None:
        self._both(os.mkdir, self._at(path))

    @rule(path=paths)
    def rmdir(self, path: str) -> None:
        self._both(os.rmdir, self._at(path))

    @rule(path=paths)
    def unlink(self, path: str) -> None:
        self._both(os.unlink, self._at(path))

    @rule(path=paths, other=paths)
    def rename(self, path: str, other: str) -> None:
        self._both(os.rename, self._at(path), self._at(other))

    @rule(path=paths, other=paths)
    def link(self, path: str, other: str) -> None:
        self._both(os.link, self._at(path), self._at(other))

    @rule(path=paths, leads_to=st.sampled_from(("a", "b", "d", "d/a", "nowhere")))
    def symlink(self, path: str, leads_to: str) -> None:
        self._both(lambda name: os.symlink(leads_to, name), self._at(path))

    @rule(path=paths)
    def readlink(self, path: str) -> None:
        self._both(os.readlink, self._at(path))

    @rule(path=paths, mode=st.sampled_from((0o600, 0o644, 0o755, 0o700)))
    def chmod(self, path: str, mode: int) -> None:
        self._both(lambda name: os.chmod(name, mode), self._at(path))

    @rule(path=paths, name=st.sampled_from(_XATTRS), letter=letters, length=lengths)
    def setxattr(self, path: str, name: str, letter: int, length: int) -> None:
        value = bytes([letter]) * min(length, 2000)
        self._both(lambda where: os.setxattr(where, name, value), self._at(path))

    @rule(path=paths, name=st.sampled_from(_XATTRS))
    def getxattr(self, path: str, name: str) -> None:
        self._both(lambda where: os.getxattr(where, name), self._at(path))

    @rule(path=paths, name=st.sampled_from(_XATTRS))
    def removexattr(self, path: str, name: str) -> None:
        self._both(lambda where: os.removexattr(where, name), self._at(path))

    @rule(path=paths)
    def listdir(self, path: str) -> None:
        self._both(lambda name: sorted(os.listdir(name)), self._at(path))

    @rule(path=paths)
    def stat(self, path: str) -> None:
        self._both(lambda name: _facts(os.stat(name)), self._at(path))

    # Checks

    @invariant()
    def what_was_used_is_the_same(self) -> None:
        for path in sorted(self._used_paths):
            places = self._at(path)
            facts = self._both(lambda name: _facts(os.lstat(name)), places)
            if facts and stat.S_ISREG(facts[0]):
                self._both(lambda name: Path(name).read_bytes(), places)
        self._used_paths.clear()
        for file in self._used_files:
            if file in self._open:
                self._both(lambda fd: _facts(os.fstat(fd)), file.fds)
                if file.readable:
                    self._both(lambda fd: os.pread(fd, 1 << 16, 0), file.fds)
        self._used_files.clear()

    def teardown(self) -> None:
        """Compare everything, and remove it."""
        for file in self._open:
            file.close()
        ours, reference = (_everything(root) for root in self._roots)
        assert ours == reference


def _facts(found: os.stat_result) -> tuple[int, ...]:
    size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    return found.st_mode, found.st_nlink, found.st_uid, size


def _everything(root: Path) -> dict[str, Any]:
    """Return all that is known of all files below a directory, by path."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        facts = _facts(path.lstat())
        attributes = {n: os.getxattr(path, n, follow_symlinks=False)
                      for n in os.listxattr(path, follow_symlinks=False)}  # fmt: skip
        data = path.read_bytes() if stat.S_ISREG(facts[0]) else b""
        found[str(path.relative_to(root))] = facts, attributes, data
    return found
