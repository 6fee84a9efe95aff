# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mount an fsspec URL read-only, with a cache on disk: ``fsspec_fs.py URL MOUNTPOINT CACHE``.

Each chunk that was fetched is a file below CACHE. The daemon hands it to the kernel, which reads it
directly from then on.
"""

import argparse
import errno
import logging
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import fsspec
import pyfuse3
import trio
from chunks import Chunks

import efuse
from efuse.errors import MountError

log = logging.getLogger("fsspec_fs")
T = TypeVar("T")


# The keys that tell versions of a file apart. The first one that a remote provides is used.
IDENTITY = ("ETag", "etag", "CRC", "generation", "LastModified", "mtime", "created")


@dataclass
class Node:
    """A remote file or directory, with the last information about it."""

    path: str
    info: dict[str, Any]
    asked: float
    """The time at which the remote was asked for *info*, by trio's clock, in seconds."""

    count: int = 0
    """The number of changes of version that were seen."""

    opened: int = 0
    """The value of *count* when the file was last opened."""

    fetching: trio.Lock = field(default_factory=trio.Lock)

    @property
    def size(self) -> int:
        return int(self.info.get("size") or 0)

    @property
    def version(self) -> str:
        told = (f"{key}={self.info[key]}" for key in IDENTITY if self.info.get(key) is not None)
        return f"{self.size} {next(told, '')}"


def _mtime_ns(info: dict[str, Any]) -> int:
    when: Any = info.get("mtime") or info.get("LastModified") or info.get("created") or 0
    if isinstance(when, datetime):
        when = when.timestamp()
    return int(when * 10**9) if isinstance(when, int | float) else 0


class Remote(efuse.Operations):
    """The files below an fsspec URL.

    :param cache: a directory for chunks. The next mount uses the chunks again.
    :param consistency: with ``cto``, an open file shows the remote's content at the time of the
        open; with ``exclusive``, the remote does not change and is asked once.
    """

    def __init__(
        self,
        url: str,
        cache: str,
        *,
        consistency: str = "cto",
        timeout_s: float = 5,
        chunk_bytes: int = 1 << 20,
    ) -> None:
        super().__init__()
        # An inode number is never used again. The file handle is the inode number.
        self.efuse_options = efuse.Options(
            consistency=consistency,
            stable_nodeids=True,
            no_open=True,
            no_flush=True,
            lazy_atime=True,
        )
        self._url = url
        self._fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        self._root = root.rstrip("/")
        self._timeout_s = timeout_s
        self._chunks = Chunks(Path(cache), url, chunk_bytes)
        self._nodes: dict[int, Node] = {}
        self._inodes: dict[tuple[str, str], int] = {}
        self._listings: dict[int, tuple[float, list[dict[str, Any]]]] = {}

    async def _ask(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function of the remote in a thread.

        :raises pyfuse3.FUSEError: ENOENT if the file does not exist, EIO if the remote fails.
        """
        try:
            return await trio.to_thread.run_sync(function, *arguments)
        except FileNotFoundError:
            raise pyfuse3.FUSEError(errno.ENOENT) from None
        except OSError as error:
            log.warning("%s: %s", self._url, error)
            raise pyfuse3.FUSEError(errno.EIO) from error

    def _path(self, parent: int, name: str) -> str:
        above = self._root if parent == pyfuse3.ROOT_INODE else self._nodes[parent].path
        return "/".join(part for part in (above, name) if part)

    async def _learn(
        self, path: str, info: dict[str, Any], asked: float
    ) -> pyfuse3.EntryAttributes:
        """Store the remote's information about a file, and void what is known of other versions.

        :param asked: the time at which the remote was asked, by trio's clock, in seconds.
        """
        if info["type"] == "file" and info.get("size") is None:
            log.warning("%s: the remote does not say how large it is", path)
            raise pyfuse3.FUSEError(errno.EIO)
        inode = self._inodes.setdefault(
            (path, info["type"]), len(self._inodes) + pyfuse3.ROOT_INODE + 1
        )
        node = self._nodes.setdefault(inode, Node(path, info, asked))
        before = node.version
        if asked >= node.asked:  # A listing may be older than the information of an open.
            node.info, node.asked = info, asked
        if node.version != before:
            node.count += 1
            # From here on no chunk of an earlier version can be handed over.
            await self.drop_backing(inode, version=node.count)
        return self._attributes(inode)

    async def _refresh(self, inode: int) -> pyfuse3.EntryAttributes:
        if inode == pyfuse3.ROOT_INODE:
            return self._attributes(inode)
        return await self._look(self._nodes[inode].path)

    async def _look(self, path: str) -> pyfuse3.EntryAttributes:
        asked = trio.current_time()
        return await self._learn(path, await self._ask(self._fs.info, path), asked)

    def _attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        node = self._nodes.get(inode)  # The root has no Node.
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_nlink = 1
        entry.st_mode = stat.S_IFDIR | 0o555
        entry.entry_timeout = entry.attr_timeout = self._timeout_s
        if node is None:
            return entry
        entry.attr_timeout = max(0, node.asked + self._timeout_s - trio.current_time())
        if node.info["type"] != "directory":
            entry.st_mode = stat.S_IFREG | 0o444
            entry.st_size = node.size
            entry.st_blocks = -(-node.size // 512)
            entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = _mtime_ns(node.info)
        return entry

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return await self._look(self._path(parent_inode, os.fsdecode(name)))

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        entry = self._attributes(inode)  # They are recent if an open has just asked the remote.
        return entry if entry.attr_timeout > 0 else await self._refresh(inode)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        if start_id == 0 or fh not in self._listings:
            path = self._root if fh == pyfuse3.ROOT_INODE else self._nodes[fh].path
            asked = trio.current_time()
            self._listings[fh] = asked, await self._ask(self._fs.ls, path, True)
        asked, listing = self._listings[fh]
        for number, info in enumerate(listing[start_id:], start_id + 1):
            name = info["name"].rstrip("/").rpartition("/")[2]
            path = self._path(fh, name)
            if info["type"] == "file" and info.get("size") is None:
                info = await self._ask(self._fs.info, path)
                if info.get("size") is None:
                    continue
            entry = await self._learn(path, info, asked)
            if not pyfuse3.readdir_reply(token, os.fsencode(name), entry, number):
                break

    async def releasedir(self, fh: int) -> None:
        self._listings.pop(fh, None)

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise pyfuse3.FUSEError(errno.EROFS)
        await self._refresh(inode)
        node = self._nodes[inode]
        if node.opened != node.count:
            node.opened = node.count
            await self.invalidate(inode)
        await trio.to_thread.run_sync(self._chunks.remove_others, node.path, node.version)
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        node, parts = self._nodes[fh], []
        count, end = node.count, min(off + size, node.size)
        while off < end:
            number, within = divmod(off, self._chunks.size)
            with await self._chunk(fh, number) as file:
                if node.count != count:
                    raise pyfuse3.FUSEError(errno.ESTALE)  # Earlier parts are of another version.
                parts.append(os.pread(file.fileno(), end - off, within))
            off += len(parts[-1])
        return b"".join(parts)

    async def _chunk(self, inode: int, number: int) -> BinaryIO:
        """Open a chunk, after fetching it if necessary, and hand it over to the kernel."""
        node = self._nodes[inode]
        start = number * self._chunks.size
        async with node.fetching:
            count, version = node.count, node.version
            end = min(start + self._chunks.size, node.size)
            if start >= end:
                raise pyfuse3.FUSEError(errno.ESTALE)  # The file is shorter now.
            file = self._chunks.open(node.path, version, number, end - start)
            if file is None:
                data = await self._ask(self._fs.cat_file, node.path, start, end)
                await self._refresh(inode)
                if node.count != count:
                    raise pyfuse3.FUSEError(errno.ESTALE)  # The version of the data is unknown.
                if len(data) != end - start:
                    log.warning("%s: %d bytes came for %d", node.path, len(data), end - start)
                    raise pyfuse3.FUSEError(errno.EIO)
                file = self._chunks.put(node.path, version, number, data)
        length = None if end == node.size else end - start  # The last chunk ends with the file.
        try:
            self.backing(inode, file.fileno(), offset=start, length=length, version=count)
        except MountError as error:
            log.info("%s is read by the daemon: %s", node.path, error)
        return file


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("url", "mountpoint", "cache"):
        parser.add_argument(name)
    parser.add_argument("--consistency", default="cto")
    parser.add_argument("--timeout", type=float, default=5, help="of names and attributes, in s")
    parser.add_argument("--chunk", type=int, default=1 << 20, help="bytes")
    told = parser.parse_args()
    remote = Remote(
        told.url,
        told.cache,
        consistency=told.consistency,
        timeout_s=told.timeout,
        chunk_bytes=told.chunk,
    )
    trio.run(efuse.serve, remote, told.mountpoint)
