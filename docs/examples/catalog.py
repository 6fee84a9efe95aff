# SPDX-License-Identifier: LGPL-2.1-or-later
"""A directory that changes by itself: it publishes its names and invalidates those that change.

The files are item-0, item-1 and so on. Each read of /next removes the oldest and adds a new one.
Run: python catalog.py MOUNTPOINT
"""

import errno
import stat
import sys
from collections.abc import Iterator

import pyfuse3
import trio

import efuse

NEXT = 2
KEPT = 100


class Catalog(efuse.Operations):
    # Inode numbers only grow, so none is ever given to another file.
    efuse_options = efuse.Options(
        consistency="exclusive", stable_nodeids=True, capacity={"entries": 4096, "attrs": 4096}
    )

    def __init__(self) -> None:
        super().__init__()
        self._first = 0

    def _names(self) -> Iterator[tuple[bytes, int]]:
        for number in range(self._first, self._first + KEPT):
            yield b"item-%d" % number, NEXT + 1 + number

    def _entry(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        directory = inode == pyfuse3.ROOT_INODE
        entry.st_mode = stat.S_IFDIR | 0o755 if directory else stat.S_IFREG | 0o444
        entry.st_size = 0 if directory else 8
        entry.entry_timeout = entry.attr_timeout = 3600
        return entry

    def publish(self) -> int:
        """Publish every name that exists, before the kernel asks for it."""
        return self.publish_entries(
            efuse.PublishedEntry(pyfuse3.ROOT_INODE, name, self._entry(inode))
            for name, inode in self._names()
        )

    async def advance(self) -> None:
        """Remove the oldest name and add a new one."""
        gone, _ = next(self._names())
        self._first += 1
        # The kernel may hold an answer for both names: the old one exists, the new one does not.
        *_, (added, _) = self._names()
        for name in (gone, added):
            await self.invalidate(parent=pyfuse3.ROOT_INODE, name=name)

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        inode = NEXT if name == b"next" else dict(self._names()).get(name)
        if inode is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return self._entry(inode)

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._entry(inode)

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        if fh == NEXT and off == 0:
            await self.advance()
        return (b"%7d\n" % (fh - NEXT - 1))[off : off + size]


async def main() -> None:
    catalog = Catalog()
    async with trio.open_nursery() as nursery:
        state = await nursery.start(efuse.serve, catalog, sys.argv[1])
        taken = catalog.publish()
        print(f"accelerated: {state.accelerated} {state.reason}; published {taken}", flush=True)


if __name__ == "__main__":
    trio.run(main)
