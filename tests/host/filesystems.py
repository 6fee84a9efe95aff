# SPDX-License-Identifier: LGPL-2.1-or-later
"""File systems for the tests, which daemon.py imports by name."""

from __future__ import annotations

import errno
import stat
from collections.abc import Sequence
from typing import Any

import pyfuse3

import efuse

FILE = 2


def attributes(inode: int, timeout: float = 0) -> pyfuse3.EntryAttributes:
    result = pyfuse3.EntryAttributes()
    result.st_ino = inode
    result.st_mode = stat.S_IFDIR | 0o755 if inode == pyfuse3.ROOT_INODE else stat.S_IFREG | 0o644
    result.st_size = 10
    result.entry_timeout = result.attr_timeout = timeout
    return result


class Faulty(efuse.Operations):
    """A directory with one file. The handlers fail in various ways: lookup as the name asks."""

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if name == b"file":
            return attributes(FILE)
        if name == b"exception":
            raise ValueError("a mistake in lookup")
        if name == b"oserror":
            raise PermissionError(errno.EPERM, "a mistake in lookup")
        if name == b"fuse-error":
            raise pyfuse3.FUSEError(errno.EDOM)
        if name == b"nothing":
            return None  # type: ignore[return-value]
        if name == b"text":
            return "entry"  # type: ignore[return-value]
        raise pyfuse3.FUSEError(errno.ENOENT)

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return attributes(inode)

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        if off == 0:
            return b"0123456789"
        if off == 1000:
            return None  # type: ignore[return-value]
        raise RuntimeError("a mistake in read")

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return None  # type: ignore[return-value]

    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        if name == b"user.text":
            return "text"  # type: ignore[return-value]
        raise KeyError(name)

    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        return ["user.text"]  # type: ignore[list-item]

    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return b"nul\0nul"

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return -1

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        return {}  # type: ignore[return-value]

    async def forget(self, inode_list: Any) -> None:
        raise LookupError("a mistake in forget")


class Invalidating(efuse.Operations):
    """A file whose size grows with each write to ``/poke``, and which the kernel caches forever."""

    def __init__(self, invalidate: bool = True) -> None:
        super().__init__()
        self._size = 1
        self._invalidate = invalidate
        self._exists = True

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if name == b"poke":
            return attributes(3, 3600)
        if name == b"file" and self._exists:
            return await self.getattr(FILE, ctx)
        absent = attributes(0, 3600)
        return absent

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        result = attributes(inode, 3600)
        if inode == FILE:
            result.st_size = self._size
        return result

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        if buf == b"grow":
            self._size += 1
        else:
            self._exists = buf == b"appear"
        if self._invalidate:
            if buf == b"grow":
                await self.invalidate(FILE)
            else:
                await self.invalidate(parent=pyfuse3.ROOT_INODE, name=b"file")
            await self.invalidate()
        return len(buf)


class Plain(pyfuse3.Operations):
    """A pyfuse3 file system without any use of eFuse."""

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return attributes(inode)

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if name == b"bug":
            raise ZeroDivisionError
        raise pyfuse3.FUSEError(errno.ENOENT)


class Bare(Plain, efuse.Operations):
    """The handlers of `Plain` with eFuse's base class. There are no others, not even statfs."""
