# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file system of docs/tutorial.md: a directory made from a table in Python."""

import errno
import stat

import pyfuse3
from pyfuse3 import EntryAttributes, FileInfo, FUSEError

import efuse

PLANETS = {
    b"mercury": b"0.39 au\n",
    b"venus": b"0.72 au\n",
    b"earth": b"1.00 au\n",
    b"mars": b"1.52 au\n",
}
FIRST = 2  # 1 is the root.


class Planets(efuse.Operations):
    """A file for each planet."""

    def __init__(self) -> None:
        super().__init__()
        self.names = list(PLANETS)
        self.texts = list(PLANETS.values())

    async def getattr(self, inode, ctx=None):
        entry = EntryAttributes()
        entry.st_ino = inode
        if inode == pyfuse3.ROOT_INODE:
            entry.st_mode = stat.S_IFDIR | 0o755
        else:
            entry.st_mode = stat.S_IFREG | 0o644
            entry.st_size = len(self.texts[inode - FIRST])
        return entry

    async def lookup(self, parent_inode, name, ctx=None):
        if name not in self.names:
            raise FUSEError(errno.ENOENT)
        return await self.getattr(FIRST + self.names.index(name))

    async def readdir(self, fh, start_id, token):
        for number in range(start_id, len(self.names)):
            entry = await self.getattr(FIRST + number)
            if not pyfuse3.readdir_reply(token, self.names[number], entry, number + 1):
                break

    async def opendir(self, inode, ctx):
        return inode

    async def open(self, inode, flags, ctx):
        return FileInfo(fh=inode)

    async def read(self, fh, off, size):
        return self.texts[fh - FIRST][off : off + size]

    async def setattr(self, inode, attr, fields, fh, ctx):
        if fields.update_size:
            self.texts[inode - FIRST] = self.texts[inode - FIRST][: attr.st_size]
        return await self.getattr(inode)

    async def write(self, fh, off, buf):
        old = self.texts[fh - FIRST]
        self.texts[fh - FIRST] = old[:off] + buf + old[off + len(buf) :]
        return len(buf)


class PlanetsForSure(Planets):
    """The same files, with promises that let the kernel answer by itself."""

    efuse_options = efuse.Options(
        consistency="exclusive",  # the planets change through this mount only
        stable_nodeids=True,  # an inode number is never given to another planet
        caller_independent=True,  # all users see the same
        no_open=True,  # open and opendir do nothing but return a handle
        no_flush=True,  # there is no flush handler
    )
