# SPDX-License-Identifier: LGPL-2.1-or-later
"""The smallest file system: one directory with one file. Run: python hello.py MOUNTPOINT"""

import errno
import os
import stat
import sys

import pyfuse3
import trio

import efuse

FILE, NAME, DATA = 2, b"message", b"hello from user space\n"


class Hello(efuse.Operations):
    # Nothing here ever changes, and open() keeps no state.
    efuse_options = efuse.Options(
        consistency="exclusive", stable_nodeids=True, no_open=True, no_flush=True
    )

    async def getattr(
        self, inode: int, ctx: pyfuse3.RequestContext | None = None
    ) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        if inode == pyfuse3.ROOT_INODE:
            entry.st_mode = stat.S_IFDIR | 0o755
        elif inode == FILE:
            entry.st_mode = stat.S_IFREG | 0o444
            entry.st_size = len(DATA)
        else:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return entry

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if parent_inode != pyfuse3.ROOT_INODE or name != NAME:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(FILE)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        if start_id == 0:
            pyfuse3.readdir_reply(token, NAME, await self.getattr(FILE), 1)

    async def releasedir(self, fh: int) -> None:
        pass

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise pyfuse3.FUSEError(errno.EACCES)
        return pyfuse3.FileInfo(fh=inode)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return DATA[off : off + size]


if __name__ == "__main__":
    trio.run(efuse.serve, Hello(), sys.argv[1])
