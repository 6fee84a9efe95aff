# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the data cache of a mount holds, file by file. Needs root, as :mod:`efuse.stats.maps`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["WATCHED_S", "DataCache", "FileCache", "since", "watch"]

WATCHED_S = 10
"""How long, in seconds, the kernel counts hits and misses of files after it was asked to."""

_ROOT = 1


@dataclass(frozen=True, slots=True)
class FileCache:
    """What the data cache holds of one file, and how often it was found there.

    :param nodeid: of the file.
    :param path: below the mount, as the kernel last learned it; None where it has not.
    :param blocks: of 4 KiB that it has in the cache, those that are void by now among them.
    :param hits: blocks that were looked for and found, while somebody watched.
    :param misses: blocks that were looked for in vain.
    """

    nodeid: int
    path: str | None = None
    blocks: int = 0
    hits: int = 0
    misses: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Share of the blocks that were found, 0 to 1; None if none was looked for."""
        looked = self.hits + self.misses
        return self.hits / looked if looked else None


@dataclass(frozen=True, slots=True)
class DataCache:
    """The data cache of a mount.

    :param capacity: blocks that it has room for; 0: there is none.
    :param used: blocks that it holds.
    :param evicted: blocks that made room for others since the mount.
    :param files: those of which it holds a block, or was asked for one, the largest first.
    """

    capacity: int
    used: int
    evicted: int
    files: tuple[FileCache, ...]


def watch(connection: int) -> DataCache:
    """Return what the data cache holds, and let the kernel count its use for `WATCHED_S` seconds.

    Hits and misses are all that were counted since the programs were attached: nothing is counted
    while nobody calls this.

    :raises AttachError: the connection has no programs.
    :raises ControlError: there is no such connection.
    """
    from efuse.bpf import Attachment
    from efuse.control import Connection

    evicted = Connection(connection).evicted
    with Attachment.open(connection) as attachment:
        maps: Mapping[str, Any] = attachment.maps
        if not {"entries", "files", "geometry", "tags", "blocks"} <= maps.keys():
            return DataCache(0, 0, evicted, ())
        shape = maps["geometry"][0]
        if not shape.sets:
            return DataCache(0, 0, evicted, ())
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
        return DataCache(maps["blocks"].definition.max_entries, held.total(), evicted, tuple(files))


def since(before: DataCache, now: DataCache) -> DataCache:
    """Return *now* with the hits and misses that were counted since *before* alone."""
    known = {file.nodeid: file for file in before.files}
    files = []
    for file in now.files:
        old = known.get(file.nodeid, FileCache(file.nodeid))
        # What was evicted meanwhile from the kernel's own counts began at 0 again.
        fresh = file.hits < old.hits or file.misses < old.misses
        hits, misses = (0, 0) if fresh else (old.hits, old.misses)
        files.append(
            FileCache(file.nodeid, file.path, file.blocks, file.hits - hits, file.misses - misses)
        )
    return DataCache(now.capacity, now.used, now.evicted, tuple(files))


class _Paths:
    """Nodeids by the names that were learned of them."""

    def __init__(self, entries: Mapping[Any, Any]) -> None:
        """Take the elements of the map ``entries``; of several names the latest counts."""
        self._names: dict[int, tuple[int, int, bytes]] = {}
        for key, entry in entries.items():
            if entry.nodeid:
                found = (entry.stamp.epoch, key.parent, key.name)
                self._names[entry.nodeid] = max(found, self._names.get(entry.nodeid, found))

    def of(self, nodeid: int) -> str | None:
        """Return the path of an inode below the mount; None if a name of it is not known."""
        parts: list[bytes] = []
        while nodeid != _ROOT:
            found = self._names.get(nodeid)
            # Directories that were moved into each other may make a circle of old names.
            if found is None or len(parts) > len(self._names):
                return None
            parts.append(found[2])
            nodeid = found[1]
        return os.fsdecode(b"/".join(reversed(parts)))
