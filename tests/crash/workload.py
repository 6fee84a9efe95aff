# SPDX-License-Identifier: LGPL-2.1-or-later
"""Changes of files on a mount, and marks in the log for what was acknowledged."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path

from tests.crash.history import History

_BLOCK = 4096
_MOST_FILES = 8
_MOST_BYTES = 12 * _BLOCK


class Workload:
    """Random changes of a few files.

    :ivar history: what was changed and acknowledged.
    """

    def __init__(self, root: Path, mark: Callable[[int], None], seed: int) -> None:
        self.history = History()
        self._root = root
        self._mark = mark
        self._random = random.Random(seed)
        self._made = 0
        self._changes: list[Callable[[str], None]] = [
            self._overwrite,
            self._overwrite_durably,
            self._overwrite_past_the_page_cache,
            self._append,
            self._truncate,
            self._store,
            self._replace,
            self._remove,
            self._read,
        ]

    def begin(self) -> None:
        """Make the empty directory durable, and put the first mark into the log."""
        os.sync()
        self._mark(0)

    def step(self) -> None:
        """Make one change, and in most cases make it durable."""
        names = self.history.names()
        if len(names) < 3 or (len(names) < _MOST_FILES and self._random.random() < 0.2):
            self._create()
            return
        name = self._random.choice(names)
        self._random.choice(self._changes)(name)
        if self.history.is_pending(name) and self._random.random() < 0.6:
            self._sync(name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _bytes(self, most: int = 3 * _BLOCK) -> bytes:
        # No byte is 0, because a hole that a crash leaves has only these.
        size = self._random.randint(1, most)
        return self._random.randbytes(size).replace(b"\0", b"\1")

    def _content(self, name: str) -> bytes:
        content = self.history.content(name)
        assert content is not None
        return content

    def _acknowledge(self, *names: str) -> None:
        self._mark(self.history.acknowledge(*names))

    def _sync(self, name: str) -> None:
        fd = os.open(self._path(name), os.O_RDWR)
        self._random.choice((os.fsync, os.fdatasync))(fd)
        os.close(fd)
        self._acknowledge(name)

    def _sync_directory(self) -> None:
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.close(fd)

    def _name(self) -> str:
        self._made += 1
        return f"f{self._made}"

    def _write_new(self, name: str, data: bytes) -> None:
        self.history.change(name, b"")
        self.history.change(name, data)
        fd = os.open(self._path(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        assert os.write(fd, data) == len(data)
        os.fsync(fd)
        os.close(fd)

    def _create(self) -> None:
        name = self._name()
        self._write_new(name, self._bytes(6 * _BLOCK))
        self._sync_directory()
        self._acknowledge(name)

    def _changed(self, name: str, data: bytes, offset: int) -> bytes:
        """Note a write; return the content after it."""
        old = self._content(name).ljust(offset, b"\0")
        new = old[:offset] + data + old[offset + len(data) :]
        self.history.change(name, new)
        return new

    def _write(self, name: str, data: bytes | mmap.mmap, offset: int, flags: int) -> None:
        fd = os.open(self._path(name), os.O_WRONLY | flags)
        assert os.pwrite(fd, data, offset) == len(data)
        os.close(fd)

    def _overwrite(self, name: str) -> None:
        data = self._bytes()
        offset = self._random.randint(0, len(self._content(name)))
        self._changed(name, data, offset)
        self._write(name, data, offset, 0)

    def _overwrite_durably(self, name: str) -> None:
        # What was written before without O_SYNC need not be durable then.
        if self.history.is_pending(name):
            self._sync(name)
        data = self._bytes()
        offset = self._random.randint(0, len(self._content(name)))
        self._changed(name, data, offset)
        self._write(name, data, offset, self._random.choice((os.O_DSYNC, os.O_SYNC)))
        self._acknowledge(name)

    def _overwrite_past_the_page_cache(self, name: str) -> None:
        durable = self._random.random() < 0.5
        if durable and self.history.is_pending(name):
            self._sync(name)
        blocks = self._random.randint(1, 3)
        offset = _BLOCK * self._random.randint(0, len(self._content(name)) // _BLOCK)
        with mmap.mmap(-1, blocks * _BLOCK) as buffer:
            buffer[:] = self._random.randbytes(len(buffer)).replace(b"\0", b"\1")
            self._changed(name, buffer[:], offset)
            self._write(name, buffer, offset, os.O_DIRECT | (os.O_DSYNC if durable else 0))
        if durable:
            self._acknowledge(name)

    def _append(self, name: str) -> None:
        data = self._bytes()
        content = self._content(name)
        if len(content) > _MOST_BYTES:
            self._truncate(name)
            return
        self.history.change(name, content + data)
        fd = os.open(self._path(name), os.O_WRONLY | os.O_APPEND)
        assert os.write(fd, data) == len(data)
        os.close(fd)

    def _truncate(self, name: str) -> None:
        content = self._content(name)
        size = self._random.randint(0, len(content) + _BLOCK)
        self.history.change(name, content[:size].ljust(size, b"\0"))
        os.truncate(self._path(name), size)

    def _store(self, name: str) -> None:
        """Store to a map of the file, and in half of the cases make that durable by msync(2)."""
        content = self._content(name)
        if not content:
            return
        offset = self._random.randrange(len(content))
        data = self._bytes(len(content) - offset)
        self._changed(name, data, offset)
        durable = self._random.random() < 0.5
        with open(self._path(name), "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            view[offset : offset + len(data)] = data
            if durable:
                view.flush()
        if durable:
            self._acknowledge(name)

    def _replace(self, name: str) -> None:
        """Write a new file, and rename it over the old one."""
        temporary, data = self._name(), self._bytes()
        self._write_new(temporary, data)
        self.history.change(temporary, None, whole=True)
        self.history.change(name, data, whole=True)
        os.rename(self._path(temporary), self._path(name))
        self._sync_directory()
        self._acknowledge(temporary, name)

    def _remove(self, name: str) -> None:
        if len(self.history.names()) < 4:
            return
        self.history.change(name, None, whole=True)
        os.unlink(self._path(name))
        self._sync_directory()
        self._acknowledge(name)

    def _read(self, name: str) -> None:
        """Read the file, so that the kernel learns it, and compare."""
        fd = os.open(self._path(name), os.O_RDONLY | self._random.choice((0, os.O_DIRECT)))
        content = self._content(name)
        with mmap.mmap(-1, -(-len(content) // _BLOCK) * _BLOCK + _BLOCK) as buffer:
            size = os.preadv(fd, [buffer], 0)
            assert buffer[:size] == content, f"{name} reads wrong before any crash"
        os.close(fd)
