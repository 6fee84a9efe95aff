# SPDX-License-Identifier: LGPL-2.1-or-later
"""The system calls that callers make on a mount whose daemon lies.

Each function makes a few calls chosen at random. A call may fail, or return bytes of the right file
and zeros; anything else is a `ForeignBytesError`.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from random import Random

from tests.fuzz import tree
from tests.guest.support.daemons import lookup_again

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _AT_NO_FOLLOW = -100, 0x100
_STATX_FLAGS = (0, 0x2000, 0x4000)
_BASIC, _BTIME = 0x7FF, 0xFFF
_RENAME_FLAGS = (0, 1, 0, 2, 0, 4)
_FIBMAP = 1
_LOCKS = (fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK)
_F_OFD_SETLK = 37
_IOCTLS = (0x80046601, 0x40046602, 0x5401, 0xC0106601, 0x801C581F)


class ForeignBytesError(Exception):
    """A caller got bytes that the daemon has not sent for its file."""


class _Caller:
    """Chooses what to call. Kinds of calls take turns, so that none is left out for long."""

    def __init__(self, chance: Random, root: str) -> None:
        self._chance, self._root = chance, root
        self._turns: dict[str, int] = {}

    def _turn(self, name: str, kinds: int) -> int:
        """Return the number of the kind whose turn it is, of *kinds*."""
        turn = self._turns.get(name, self._chance.randrange(kinds)) % kinds
        self._turns[name] = turn + 1
        return turn


class Settled(_Caller):
    """Calls on one of the settled files. All that they write is the byte of the file.

    :ivar checked: number of the bytes that were read and compared.
    :ivar through: number of the reads that FUSE's passthrough carried out.
    """

    def __init__(self, chance: Random, root: str) -> None:
        super().__init__(chance, root)
        self.checked = self.through = 0

    def some(self) -> None:
        """Make the calls of one kind."""
        name, nodeid = self._chance.choice([*tree.FILES.items()])
        call = _SETTLED[self._turn("some", len(_SETTLED))]
        call(self, f"{self._root}/{name}", nodeid)

    def _check(self, what: str, nodeid: int, data: bytes) -> None:
        self.checked += len(data)
        self.through += tree.is_through(nodeid, data)
        if strange := tree.foreign(nodeid, data):
            raise ForeignBytesError(f"{what} of file {nodeid} returned bytes {set(strange)}")

    def _at(self) -> tuple[int, int]:
        """Return an offset and a length."""
        lengths = (1, 100, 4096, 5000, 20000, 70000)
        return self._chance.choice((0, 1, 4095, 4096, 8192, 12000)), self._chance.choice(lengths)

    def _open(self, path: str, flags: int) -> int:
        more = self._chance.choice((0, 0, 0, os.O_DIRECT, os.O_SYNC, os.O_NOATIME))
        return os.open(path, flags | more)

    def read(self, path: str, nodeid: int) -> None:
        fd = self._open(path, os.O_RDONLY)
        try:
            for _ in range(self._chance.randrange(1, 4)):
                offset, length = self._at()
                self._check("read", nodeid, os.pread(fd, length, offset))
            buffer = bytearray(4096)
            got = os.preadv(fd, [buffer], 4096, self._chance.choice((0, os.RWF_NOWAIT)))
            self._check("preadv", nodeid, bytes(buffer[:got]))
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def splice(self, path: str, nodeid: int) -> None:
        fd = self._open(path, os.O_RDONLY)
        read, write = os.pipe()
        try:
            got = os.splice(fd, write, self._at()[1], offset_src=self._at()[0])
            if got:
                self._check("splice", nodeid, os.read(read, got))
        finally:
            for each in (fd, read, write):
                os.close(each)

    def write(self, path: str, nodeid: int) -> None:
        append = self._chance.choice((0, 0, os.O_APPEND))
        fd = self._open(path, os.O_RDWR | append)
        try:
            for _ in range(self._chance.randrange(1, 4)):
                offset, length = self._at()
                os.pwrite(fd, tree.fill(nodeid, length), offset)
            self._chance.choice((os.fsync, os.fdatasync, int))(fd)
            self._check("read after write", nodeid, os.pread(fd, 5000, 0))
        finally:
            os.close(fd)

    def mapped(self, path: str, nodeid: int) -> None:
        """Load and store by a shared mapping, by system calls that fail where a fault fails."""
        fd = os.open(path, os.O_RDWR)
        read, write = os.pipe()
        try:
            with mmap.mmap(fd, 2 * mmap.PAGESIZE) as memory, memoryview(memory) as view:
                at = self._chance.randrange(6000)
                length = os.write(write, view[at : at + 2000])
                self._check("load", nodeid, os.read(read, length))
                os.write(write, tree.fill(nodeid, 2000))
                os.readv(read, [view[at : at + 2000]])
                if self._chance.random() < 0.5:
                    memory.flush()
        finally:
            for each in (fd, read, write):
                os.close(each)

    def attributes(self, path: str, nodeid: int) -> None:
        os.stat(path)
        mask = (_BASIC, _BTIME)[self._turn("mask", 2)]
        flags = _AT_NO_FOLLOW | self._chance.choice(_STATX_FLAGS)
        buffer = ctypes.create_string_buffer(256)
        _libc.statx(_AT_FDCWD, path.encode(), flags, mask, buffer)
        os.access(path, self._chance.randrange(8))
        change = self._turn("attributes", 4)
        if change == 0:
            os.chmod(path, 0o600 | self._chance.getrandbits(6))
        elif change == 1:
            os.utime(path, ns=(self._chance.getrandbits(60), self._chance.getrandbits(60)))
        elif change == 2:
            os.chown(path, self._chance.randrange(5), 0)

    def sizes(self, path: str, nodeid: int) -> None:
        kind = self._turn("sizes", 4)
        if kind == 0:
            os.truncate(path, self._chance.choice((0, 1, 4096, 9000, tree.SIZE, 1 << 33)))
        truncates = self._chance.choice((0, os.O_TRUNC))
        fd = os.open(path, os.O_RDWR | truncates)
        try:
            if kind == 1:
                mode = self._chance.choice((0, 1, 3, 0x10))
                _libc.fallocate(fd, mode, ctypes.c_long(4096), ctypes.c_long(8192))
            elif kind == 2:
                whence = self._chance.choice((os.SEEK_DATA, os.SEEK_HOLE, os.SEEK_END))
                os.lseek(fd, self._chance.choice((0, 4096, 1 << 20)), whence)
            else:
                # Within one file: the kernel may carry it out by reading and writing.
                os.copy_file_range(fd, fd, 4096, offset_src=0, offset_dst=8192)
            self._check("read after a change", nodeid, os.pread(fd, 20000, 0))
        finally:
            os.close(fd)

    def xattrs(self, path: str, nodeid: int) -> None:
        name = self._chance.choice(("user.a", "user.b", "system.posix_acl_access", "security.x"))
        change = self._turn("xattrs", 4)
        if change == 0:
            os.setxattr(path, name, tree.fill(nodeid, self._chance.choice((0, 10, 900, 5000))))
        elif change == 1:
            os.removexattr(path, name)
        elif change == 2:
            os.listxattr(path)
        else:
            value = os.getxattr(path, "user.a")
            self._check("getxattr", nodeid, value)

    def locks(self, path: str, nodeid: int) -> None:
        fd = os.open(path, os.O_RDWR)
        try:
            command = (fcntl.F_SETLK, fcntl.F_SETLKW, fcntl.F_GETLK)[self._turn("locks", 3)]
            kinds = _LOCKS[:2] if command == fcntl.F_GETLK else _LOCKS
            lock = struct.pack("hhqqi", self._chance.choice(kinds), 0, 0, 100, 0)
            fcntl.fcntl(fd, command, lock)
            fcntl.fcntl(fd, _F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 9, 0))
            fcntl.flock(fd, self._chance.choice((fcntl.LOCK_SH, fcntl.LOCK_UN)))
        finally:
            os.close(fd)

    def others(self, path: str, nodeid: int) -> None:
        fd = os.open(path, os.O_RDONLY)
        try:
            with suppress(OSError):  # Only a mount with a block device can tell.
                fcntl.ioctl(fd, _FIBMAP, bytearray(4))
            if self._turn("others", 2):
                poll = select.poll()
                poll.register(fd, select.POLLIN | select.POLLPRI)
                poll.poll(self._chance.choice((0, 0, 30)))
            else:
                fcntl.ioctl(fd, self._chance.choice(_IOCTLS), bytearray(64))
        finally:
            os.close(fd)

    def link(self, path: str, nodeid: int) -> None:
        target = os.readlink(f"{self._root}/l").encode(errors="surrogateescape")
        self.checked += len(target)
        if not (tree.TARGET + b"/" * 5000).startswith(target):
            raise ForeignBytesError(f"readlink returned {target!r}")


_SETTLED: list[Callable[[Settled, str, int], None]] = [
    *(Settled.read, Settled.read, Settled.read, Settled.write, Settled.write, Settled.splice),
    *(Settled.mapped, Settled.attributes, Settled.sizes, Settled.xattrs, Settled.locks),
    *(Settled.others, Settled.link),
]


class Open(_Caller):
    """Calls on names that may lead anywhere. A file that they read is filled with one byte."""

    def some(self) -> None:
        """Make the calls of one kind."""
        _OPEN[self._turn("some", len(_OPEN))](self)

    def _path(self) -> str:
        below = self._chance.choice(("", "", "d/", "w1/"))
        return f"{self._root}/{below}{self._chance.choice(tree.NAMES)}"

    def list(self) -> None:
        path = (self._root, f"{self._root}/d", self._path())[self._turn("list", 3)]
        with os.scandir(path) as entries:
            for entry in entries:
                if self._chance.random() < 0.3:
                    entry.stat(follow_symlinks=False)

    def sync(self) -> None:
        fd = os.open((self._root, f"{self._root}/d")[self._turn("sync", 2)], os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read(self) -> None:
        fd = os.open(self._path(), os.O_RDONLY | os.O_NONBLOCK)
        try:
            is_file = stat.S_ISREG(os.fstat(fd).st_mode)
            data = os.pread(fd, 9000, self._chance.choice((0, 4096, 5000))) if is_file else b""
        finally:
            os.close(fd)
        if len(found := set(data) - {0}) > 1:
            raise ForeignBytesError(f"read of a file returned bytes {found}")

    def make(self) -> None:
        path = f"{self._root}/{self._chance.choice(tree.ABSENT)}"
        kind = self._turn("make", 6)
        if kind == 0:
            os.mkdir(path, 0o755)
        elif kind == 1:
            os.symlink("anywhere", path)
        elif kind == 2:
            os.mknod(path, self._chance.choice((stat.S_IFREG, stat.S_IFIFO)) | 0o600)
        elif kind == 3:
            os.link(self._path(), path)
        else:
            exclusive = self._chance.choice((0, os.O_EXCL, os.O_TRUNC))
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | exclusive, 0o644))

    def make_nameless(self) -> None:
        os.close(os.open(self._root, os.O_TMPFILE | os.O_RDWR, 0o600))

    def remove(self) -> None:
        if self._turn("remove", 2):
            os.unlink(self._path())
        else:
            os.rmdir(f"{self._root}/{self._chance.choice(tree.NAMES[1::4])}")

    def rename(self) -> None:
        flags = _RENAME_FLAGS[self._turn("rename", len(_RENAME_FLAGS))]
        one = self._path().encode()
        other = f"{self._root}/{self._chance.choice(tree.NAMES + tree.ABSENT)}".encode()
        _libc.renameat2(_AT_FDCWD, one, _AT_FDCWD, other, flags)

    def volume(self) -> None:
        os.statvfs(self._root)
        fd = os.open(self._root, os.O_RDONLY)
        try:
            _libc.syncfs(fd)
        finally:
            os.close(fd)

    def drop(self) -> None:
        """Drop all unused dentries, so that the kernel forgets inodes."""
        if self._chance.random() < 0.3:
            lookup_again(self._root)


_OPEN: list[Callable[[Open], None]] = [
    *(Open.list, Open.read, Open.read, Open.make, Open.make, Open.make_nameless, Open.remove),
    *(Open.rename, Open.sync, Open.volume, Open.drop),
]
