# SPDX-License-Identifier: LGPL-2.1-or-later
"""Serve a read-only tree from a SQLite database: ``archive_fs.py DATABASE MOUNTPOINT``.

All names and attributes, and the data of small files, are published when the tree is mounted.
``pack.py`` makes such a database from a tar archive.
"""

import errno
import os
import sqlite3
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyfuse3
import trio

import efuse

BLOCK = 4096
SMALL = 16 * BLOCK  # The data of files of up to this many bytes is published.
BUDGET = 16384  # The number of blocks to publish in total: 64 MiB.
ALWAYS_S = 365 * 24 * 3600  # The timeouts of plain FUSE, since nothing ever changes.


@dataclass
class Node:
    """A file of the tree. Its inode number is the number of its row plus 1, since the root is 1."""

    mode: int
    mtime: float = 0
    size: int = 0
    children: dict[bytes, int] = field(default_factory=dict)


class Archive(efuse.Operations):
    """The table ``files`` (path, mode, mtime, data) of a database that never changes."""

    def __init__(self, database: str) -> None:
        super().__init__()
        self._path = os.path.realpath(database)
        self._connection: sqlite3.Connection | None = None
        self._nodes = {pyfuse3.ROOT_INODE: Node(stat.S_IFDIR | 0o755)}
        self._read_index()
        self._small = list(self._choose_small())
        blocks = sum(-(-self._nodes[inode].size // BLOCK) for inode in self._small)
        # The maps get twice the room that is needed, so that no published value is evicted.
        room = 2 * len(self._nodes) + 1024
        self.efuse_options = efuse.Options(
            consistency="exclusive",
            stable_nodeids=True,
            no_open=True,
            no_flush=True,
            lazy_atime=True,
            capacity={"entries": room, "attrs": room, "blocks": 2 * blocks + 1024},
        )

    def _open_database(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self._path}?immutable=1", uri=True)

    def _read_index(self) -> None:
        inodes = {b"": pyfuse3.ROOT_INODE}
        query = "SELECT rowid, path, mode, mtime, ifnull(length(data), 0) FROM files ORDER BY path"
        database = self._open_database()
        for row, path, mode, mtime, size in database.execute(query):
            parent, _, name = os.fsencode(path).rpartition(b"/")
            inode = inodes[os.fsencode(path)] = row + pyfuse3.ROOT_INODE
            self._nodes[inode] = Node(mode, mtime, size)
            self._nodes[inodes[parent]].children[name] = inode
        database.close()

    def _choose_small(self) -> Iterator[int]:
        left = BUDGET
        for inode, node in self._nodes.items():
            if stat.S_ISREG(node.mode) and 0 < node.size <= SMALL and left > 0:
                left -= -(-node.size // BLOCK)
                yield inode

    def init(self) -> None:
        """Publish names, attributes and small files before the kernel's first request."""
        epoch = self.efuse.epoch()
        self.publish_entries(
            (
                efuse.PublishedEntry(parent, name, self._attributes(inode))
                for parent, node in self._nodes.items()
                for name, inode in node.children.items()
            ),
            epoch=epoch,
        )
        for inode in self._small:
            self.publish_data(inode, 0, self._data(inode), epoch=epoch, end=True)

    def _attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        node = self._nodes[inode]
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = node.mode
        entry.st_nlink = 1
        entry.st_size = node.size
        entry.st_blocks = -(-node.size // 512)
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = int(node.mtime * 10**9)
        entry.entry_timeout = entry.attr_timeout = ALWAYS_S
        return entry

    def _data(self, inode: int, offset: int = 0, size: int | None = None) -> bytes:
        if self._connection is None:  # The process that serves opens its own connection.
            self._connection = self._open_database()
        if self._nodes[inode].size == 0:
            return b""
        row = inode - pyfuse3.ROOT_INODE
        with self._connection.blobopen("files", "data", row, readonly=True) as blob:
            blob.seek(min(offset, len(blob)))
            return blob.read(-1 if size is None else size)

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        inode = self._nodes[parent_inode].children.get(name)
        if inode is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return self._attributes(inode)

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._attributes(inode)

    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return self._data(inode)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        children = list(self._nodes[fh].children.items())
        for number, (name, inode) in enumerate(children[start_id:], start_id + 1):
            if not pyfuse3.readdir_reply(token, name, self._attributes(inode), number):
                break

    async def releasedir(self, fh: int) -> None:
        pass

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise pyfuse3.FUSEError(errno.EROFS)
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return self._data(fh, off, size)


if __name__ == "__main__":
    trio.run(efuse.serve, Archive(sys.argv[1]), sys.argv[2])
