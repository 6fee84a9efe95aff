# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test ``efuse maps files``: the blocks of each file in the data cache, and each file's hits."""

from __future__ import annotations

import json
import os
from pathlib import Path

from efuse.bpf.values import FileUse
from efuse.stats.files import FileCache, since, watch
from tests.guest.support.backing_files import make
from tests.guest.support.daemons import Mount, eventually
from tests.guest.support.data_cache import BLOCKS, cached
from tests.guest.support.file_data import BLOCK, SIZE, fill, read_direct
from tests.guest.support.forked import efuse


def _use(m: Mount, name: str) -> tuple[int, int]:
    """Return the hits and misses that the kernel has counted for a file so far."""
    assert m.attachment is not None
    use = m.attachment.maps["files"].get(m.call("nodeid", name), FileUse())
    return use.hits, use.misses


def test_blocks_hits_and_misses_are_counted_by_file(mountpoint: Path) -> None:
    with cached(mountpoint, capacity={"blocks": 4096}) as m:
        os.mkdir(m / "dir")
        make(m, "dir/g", fill("g", 3 * BLOCK))
        before = watch(m.connection.id)
        assert (before.capacity, before.used, before.files) == (4096, 0, ())
        for _ in range(3):
            assert read_direct(m / "f", SIZE + BLOCK) == fill("d")
        assert read_direct(m / "dir/g", 2 * BLOCK) == fill("g", 2 * BLOCK)
        found = since(before, watch(m.connection.id))
        f, g = m.call("nodeid", "f"), m.call("nodeid", "dir/g")
        # The first READ also looks for the block behind the file's end.
        assert found.files == (
            FileCache(f, "f", BLOCKS, hits=2 * BLOCKS, misses=BLOCKS + 1),
            FileCache(g, "dir/g", 2, hits=0, misses=2),
        )
        assert found.used == BLOCKS + 2


def test_blocks_between_gaps_count_once(mountpoint: Path) -> None:
    with cached(mountpoint) as m:
        watch(m.connection.id)
        for n in (0, 2, 4):
            assert read_direct(m / "f", BLOCK, n * BLOCK) == fill("d")[n * BLOCK : (n + 1) * BLOCK]
        assert _use(m, "f") == (0, 3)
        assert read_direct(m / "f", 6 * BLOCK) == fill("d")[: 6 * BLOCK]
        assert _use(m, "f") == (3, 6)


def test_nothing_is_counted_without_a_watcher(mountpoint: Path) -> None:
    with cached(mountpoint) as m:
        assert m.attachment is not None
        geometry = m.attachment.maps["geometry"]
        read_direct(m / "f", SIZE)
        with m.answered("read"):
            assert read_direct(m / "f", SIZE) == fill("d")
        assert _use(m, "f") == (0, 0)
        watch(m.connection.id)
        assert geometry[0].watched_ns > 0
        read_direct(m / "f", SIZE)
        assert _use(m, "f") == (BLOCKS, 0)
        # Without a watcher, the first lookup after the watcher's time is over ends the counting.
        eventually(lambda: read_direct(m / "f", BLOCK) and not geometry[0].watched_ns)
        hits = _use(m, "f")
        with m.answered("read"):
            assert read_direct(m / "f", SIZE) == fill("d")
        assert _use(m, "f") == hits


def test_evicted_blocks_are_counted(mountpoint: Path) -> None:
    with cached(mountpoint, capacity={"blocks": 64}) as m:
        data = fill("h", 256 * BLOCK)
        make(m, "h", data)
        for n in range(256):
            # Watching ends after a time, which a slow kernel may exceed.
            if n % 32 == 0:
                watch(m.connection.id)
            assert read_direct(m / "h", BLOCK, n * BLOCK) == data[n * BLOCK : (n + 1) * BLOCK]
        found = watch(m.connection.id)
        assert (found.capacity, found.evicted) == (64, m.connection.evicted)
        assert found.evicted >= 256 - 64
        (h,) = found.files
        assert (h.path, h.blocks, h.misses) == ("h", found.used, 256)
        assert found.used <= 64


def test_mount_without_a_data_cache_has_capacity_0(mountpoint: Path) -> None:
    with cached(mountpoint, capacity={"blocks": 0}) as m:
        read_direct(m / "f", SIZE)
        found = watch(m.connection.id)
        assert (found.capacity, found.used, found.files) == (0, 0, ())


def test_maps_files_prints_the_counts(mountpoint: Path) -> None:
    with cached(mountpoint, capacity={"blocks": 4096}) as m:
        watch(m.connection.id)
        for _ in range(2):
            read_direct(m / "f", SIZE + BLOCK)
        words = ("maps", "files", str(m.connection.id))
        output = json.loads(efuse(*words, "--json"))
        f = m.call("nodeid", "f")
        hits, misses = _use(m, "f")
        assert (hits, misses) == (BLOCKS, BLOCKS + 1)
        assert output["files"] == [
            {
                "nodeid": f,
                "path": "f",
                "blocks": BLOCKS,
                "hits": hits,
                "misses": misses,
                "hit_ratio": hits / (hits + misses),
            }
        ]
        text = efuse(*words)
        assert text.startswith(f"data cache: {BLOCKS} of 4096 blocks, ")
        assert ["f", str(BLOCKS), str(hits), str(misses)] in [
            line.split()[:4] for line in text.splitlines()
        ]
        assert m.asked().count("read") == 1
