# SPDX-License-Identifier: LGPL-2.1-or-later
"""A pyfuse3 file system whose handlers sleep, fork or notify when a test asks for it."""

from __future__ import annotations

import errno
import functools
import os
import random
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyfuse3
import trio

import efuse

SIZES = (0, 1, 4096, 8000, 8193, 100_000, 1 << 20)
FIRST, POKE, CHANGING = 10, 2, 3
ACTS = {
    b"gate": 10**6,
    b"asleep": 10**6 + 1,
    b"go": 10**6 + 2,
    b"fork": 10**6 + 3,
    b"reap": 10**6 + 4,
}
LONG = 3600.0
DEADLINE_S = 60


@functools.cache
def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def read_all(root: Path, times: int = 1) -> None:
    """Read the files of a `BlockingFileSystem`, and compare their contents."""
    for _ in range(times):
        for number, size in enumerate(SIZES):
            assert os.stat(root / f"f{number}").st_size == size
            assert (root / f"f{number}").read_bytes() == content(size)


def act(root: Path, name: str, number: int = 0) -> None:
    """Read a file of a `BlockingFileSystem` whose read performs an action."""
    fd = os.open(root / name, os.O_RDONLY)
    assert os.pread(fd, 1, number) == b""
    os.close(fd)


def read_while_handlers_sleep(root: Path, sleepers: int = 40) -> None:
    """Read the files while handlers sleep, and then wake the handlers; three times."""
    with ThreadPoolExecutor(sleepers) as pool:
        for _ in range(3):
            sleeping = [pool.submit(act, root, "gate") for _ in range(sleepers)]
            act(root, "asleep", sleepers)
            read_all(root, 3)
            assert not any(each.done() for each in sleeping)
            act(root, "go")
            for each in sleeping:
                each.result(DEADLINE_S)
    read_all(root, 3)


def poke(root: Path, times: int) -> None:
    """Make ``changing`` grow on a new `BlockingFileSystem`, and check its size immediately."""
    assert os.stat(root / "changing").st_size == 1
    fd = os.open(root / "poke", os.O_WRONLY)
    for number in range(times):
        os.write(fd, b"x")
        assert os.stat(root / "changing").st_size == number + 2
    os.close(fd)


class BlockingFileSystem(efuse.Operations):
    """Files ``f0``, ``f1``, ... with the :data:`SIZES` in turn; each read goes to the daemon.

    A read of another file performs an action, see :func:`act`. A read of ``gate`` sleeps until
    ``go`` is read, and a read of ``asleep`` until as many sleep as its offset says. A read of
    ``fork`` makes a child that lives until ``reap`` is read. A write to ``poke`` makes ``changing``
    a byte larger and invalidates it before it returns.
    """

    def __init__(self, files: int = len(SIZES)) -> None:
        super().__init__()
        self._sizes = [SIZES[i % len(SIZES)] for i in range(files)]
        self._gate = trio.Event()
        self._asleep = 0
        self._child = self._tell_child = -1
        self._size = 1
        self._data = {size: content(size) for size in SIZES}

    def _attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        found = pyfuse3.EntryAttributes()
        found.st_ino = inode
        found.st_mode = stat.S_IFREG | 0o644
        found.entry_timeout = found.attr_timeout = 0
        if inode == pyfuse3.ROOT_INODE:
            found.st_mode = stat.S_IFDIR | 0o755
        elif inode == CHANGING:
            found.st_size = self._size
            found.entry_timeout = found.attr_timeout = LONG
        elif FIRST <= inode < FIRST + len(self._sizes):
            found.st_size = self._sizes[inode - FIRST]
        return found

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._attributes(inode)

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if name[:1] == b"f" and name[1:].isdigit() and int(name[1:]) < len(self._sizes):
            return self._attributes(FIRST + int(name[1:]))
        if name in (b"poke", b"changing"):
            return self._attributes(POKE if name == b"poke" else CHANGING)
        if name in ACTS:
            return self._attributes(ACTS[name])
        raise pyfuse3.FUSEError(errno.ENOENT)

    async def _act(self, inode: int, number: int) -> None:
        if inode == ACTS[b"gate"]:
            self._asleep += 1
            await self._gate.wait()
            self._asleep -= 1
        elif inode == ACTS[b"asleep"]:
            while self._asleep < number:
                await trio.sleep(0.001)
        elif inode == ACTS[b"go"]:
            self._gate.set()
            self._gate = trio.Event()
        elif inode == ACTS[b"fork"]:
            self._fork()
        elif inode == ACTS[b"reap"]:
            os.close(self._tell_child)
            assert os.waitpid(self._child, 0)[1] == 0

    def _fork(self) -> None:
        hear, self._tell_child = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._tell_child)
            os.read(hear, 1)
            os._exit(0)
        os.close(hear)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        for number in range(start_id, len(self._sizes)):
            attributes = self._attributes(FIRST + number)
            if not pyfuse3.readdir_reply(token, b"f%d" % number, attributes, number + 1):
                return

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        if fh in ACTS.values():
            await self._act(fh, off)
            return b""
        return self._data[self._sizes[fh - FIRST]][off : off + size]

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        if fh == POKE:
            self._size += 1
            await self.invalidate(CHANGING)
        return len(buf)
