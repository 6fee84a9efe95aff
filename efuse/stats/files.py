# SPDX-License-Identifier: LGPL-2.1-or-later
"""Show which files the data cache of a mount holds. Needs root, as :mod:`efuse.stats.maps` does."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["WATCHED_S", "DataCacheUsage", "FileCache", "since", "watch"]

WATCHED_S = 10
"""How long the kernel counts hits and misses of files after a call of `watch`, in seconds."""

_ROOT = 1


@dataclass(frozen=True, slots=True)
class FileCache:
    """Cached blocks of one file, and how often they were looked for.

    :param nodeid: nodeid of the file.
    :param path: path below the mount, as the kernel last learned it; None if it is unknown.
    :param blocks: blocks of 4 KiB in the cache, including those that have become void.
    :param hits: blocks that were looked for and found, while the cache was watched.
    :param misses: blocks that were looked for and not found, while the cache was watched.
    """

    nodeid: int
    path: str | None = None
    blocks: int = 0
    hits: int = 0
    misses: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Share of lookups that found the block, 0 to 1; None if there were no lookups."""
        looked = self.hits + self.misses
        return self.hits / looked if looked else None


@dataclass(frozen=True, slots=True)
class DataCacheUsage:
    """Content of the data cache of a mount.

    :param capacity: number of blocks that fit; 0 if the mount has no data cache.
    :param used: number of blocks in the cache.
    :param evicted: number of blocks evicted since the mount.
    :param files: files with a cached block or a counted lookup, the largest first.
    """

    capacity: int
    used: int
    evicted: int
    files: tuple[FileCache, ...]


def watch(connection: int) -> DataCacheUsage:
    """Return the content of the data cache, and count its use for the next `WATCHED_S` seconds.

    The kernel counts hits and misses only within that time after a call. The counts add up over all
    calls since the programs were attached.

    :raises AttachError: the connection has no programs.
    :raises ControlError: there is no such connection.
    """
    from efuse.bpf import Attachment
    from efuse.control import Connection

    evicted = Connection(connection).evicted
    with Attachment.open(connection) as attachment:
        maps: Mapping[str, Any] = attachment.maps
        if not {"entries", "files", "geometry", "tags", "blocks"} <= maps.keys():
            return DataCacheUsage(0, 0, evicted, ())
        shape = maps["geometry"][0]
        if not shape.sets:
            return DataCacheUsage(0, 0, evicted, ())
        maps["geometry"][0] = shape._replace(
            watched_ns=time.monotonic_ns() + WATCHED_S * 1_000_000_000
        )
        held = maps["tags"].held()
        used = maps["files"].read_all()
        paths = _Paths(maps["entries"].read_all())
        files = [
            FileCache(nodeid, paths.of(nodeid), held[nodeid], *used.get(nodeid, (0, 0)))
            for nodeid in held.keys() | used.keys()
        ]
        files.sort(key=lambda file: (-file.blocks, -file.hits, file.nodeid))
        return DataCacheUsage(
            maps["blocks"].definition.max_entries, held.total(), evicted, tuple(files)
        )


def since(before: DataCacheUsage, now: DataCacheUsage) -> DataCacheUsage:
    """Return *now* with the hits and misses since *before* only."""
    known = {file.nodeid: file for file in before.files}
    files = []
    for file in now.files:
        old = known.get(file.nodeid, FileCache(file.nodeid))
        # A count that the kernel evicted in between restarted at 0.
        fresh = file.hits < old.hits or file.misses < old.misses
        hits, misses = (0, 0) if fresh else (old.hits, old.misses)
        files.append(
            FileCache(file.nodeid, file.path, file.blocks, file.hits - hits, file.misses - misses)
        )
    return DataCacheUsage(now.capacity, now.used, now.evicted, tuple(files))


class _Paths:
    """Paths of inodes, put together from learned names."""

    def __init__(self, entries: Mapping[Any, Any]) -> None:
        """Use the elements of the map ``entries``. Of an inode's names, the latest counts."""
        self._names: dict[int, tuple[int, int, bytes]] = {}
        for key, entry in entries.items():
            if entry.nodeid:
                found = (entry.stamp.epoch, key.parent, key.name)
                self._names[entry.nodeid] = max(found, self._names.get(entry.nodeid, found))

    def of(self, nodeid: int) -> str | None:
        """Return the path of an inode below the mount; None if a name in it is unknown."""
        parts: list[bytes] = []
        while nodeid != _ROOT:
            found = self._names.get(nodeid)
            # Old names of directories that were moved into each other can form a loop.
            if found is None or len(parts) > len(self._names):
                return None
            parts.append(found[2])
            nodeid = found[1]
        return os.fsdecode(b"/".join(reversed(parts)))
