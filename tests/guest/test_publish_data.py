# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test blocks that the daemon publishes: the kernel serves them if they are valid, else never."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from efuse.bpf import DataCache, PublishedBlocks, libbpf
from efuse.bpf.values import NEVER_NS
from efuse.control import Connection
from efuse.fs import Passthrough
from tests.guest.support.backing_files import make
from tests.guest.support.daemons import Call, Mount, eventually
from tests.guest.support.data_cache import (
    CHANGES,
    cached,
    overwrite_tags,
    path_count,
    requests,
    warm,
)
from tests.guest.support.file_data import BLOCK, SIZE, drop_pages, fill, read, read_direct, write
from tests.guest.support.numbered import Numbered
from tests.guest.support.serving import served
from tests.guest.support.wire import FOPEN_NOFLUSH

BLOCKS = -(-SIZE // BLOCK)
WRITER = 1 << 31


@contextlib.contextmanager
def publishing(mountpoint: Path, **options: Any) -> Iterator[tuple[Mount, DataCache]]:
    """Yield a mount with one file that the kernel knows nothing of, and the mount's data cache."""
    with cached(mountpoint, **options) as m:
        assert m.attachment
        with DataCache(m.attachment.maps) as cache:
            yield m, cache


def publish(m: Mount, cache: DataCache, epoch: int, data: bytes = fill("d")) -> PublishedBlocks:
    """Publish all of the file ``f``."""
    nodeid = m.call("nodeid", "f")
    return cache.publish(nodeid, 0, data, epoch=epoch, valid_ns=NEVER_NS, end=True)


# Published data that is served


def test_published_data_is_read_without_the_daemon(mountpoint: Path) -> None:
    with publishing(mountpoint) as (m, cache):
        done = publish(m, cache, m.connection.epoch)
        assert (done.stored, done.busy, done.newer) == (BLOCKS, 0, 0)
        requests(m)
        for _ in range(2):
            with m.answered("read"):
                assert read_direct(m / "f", SIZE + BLOCK) == fill("d")
        m.log()
        assert read(m / "f") == fill("d")
        assert "read" not in m.asked()
        assert requests(m) == []
        assert path_count(m, "partial") == 0


def test_read_returns_the_published_bytes_not_the_daemons(mountpoint: Path) -> None:
    """The published bytes differ from the daemon's, so the test sees which one answers."""
    with publishing(mountpoint) as (m, cache):
        publish(m, cache, m.connection.epoch, fill("p"))
        assert read_direct(m / "f", SIZE + BLOCK) == fill("p")
        m.connection.invalidate()
        assert read_direct(m / "f", SIZE + BLOCK) == fill("d")


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_published_file_ends_where_the_publisher_says(mountpoint: Path, size: int) -> None:
    with publishing(mountpoint) as (m, cache):
        make(m, "g", fill("g", size))
        nodeid = m.call("nodeid", "g")
        epoch = m.connection.epoch
        cache.publish(nodeid, 0, fill("g", size), epoch=epoch, valid_ns=NEVER_NS, end=True)
        m.log()
        assert read_direct(m / "g", 1 << 16) == fill("g", size)
        assert "read" not in m.asked()


def test_only_unpublished_blocks_go_to_the_daemon(mountpoint: Path) -> None:
    with publishing(mountpoint) as (m, cache):
        nodeid, epoch = m.call("nodeid", "f"), m.connection.epoch
        part = fill("d")[2 * BLOCK : 6 * BLOCK]
        done = cache.publish(nodeid, 2 * BLOCK, part, epoch=epoch, valid_ns=NEVER_NS)
        assert done.stored == 4
        requests(m)
        assert read_direct(m / "f", 8 * BLOCK) == fill("d")[: 8 * BLOCK]
        assert requests(m) == [(0, 2 * BLOCK), (6 * BLOCK, 2 * BLOCK)]


def test_published_data_expires(mountpoint: Path) -> None:
    with publishing(mountpoint, consistency="ttl", attr_timeout=3600.0) as (m, cache):
        nodeid = m.call("nodeid", "f")

        def given(letter: str, valid_ns: int) -> None:
            epoch = m.connection.epoch
            cache.publish(nodeid, 0, fill(letter), epoch=epoch, valid_ns=valid_ns, end=True)

        given("p", 3600 * 10**9)
        with m.answered("read"):
            assert read_direct(m / "f", BLOCK) == fill("p")[:BLOCK]
        m.call("inval_inode", "f")
        given("q", 0)
        with m.passed("read", "expired"):
            assert read_direct(m / "f", BLOCK) == fill("d")[:BLOCK]


def test_published_data_is_not_served_in_strict_mode(mountpoint: Path) -> None:
    with publishing(mountpoint, consistency="strict") as (m, cache):
        publish(m, cache, m.connection.epoch, fill("p"))
        with m.passed("read", "declined"):
            assert read_direct(m / "f", BLOCK) == fill("d")[:BLOCK]


# Data from before a change, which must never be served, however late it is published


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__[1:])
@pytest.mark.parametrize("when", ["before", "behind"])
def test_data_from_before_a_change_is_not_served(
    mountpoint: Path, change: Callable[[Mount], bytes], when: str
) -> None:
    with publishing(mountpoint) as (m, cache):
        make(m, "g", fill("g"))
        epoch = m.connection.epoch
        if when == "before":
            publish(m, cache, epoch)
            assert read_direct(m / "f", SIZE) == fill("d")
        expected = change(m)
        if when == "behind":
            assert publish(m, cache, epoch).stored == BLOCKS
        assert read_direct(m / "f", 1 << 17) == expected
        drop_pages(m / "f")
        assert read(m / "f", 1 << 17) == expected


def test_data_from_before_a_write_of_its_block_is_not_served(mountpoint: Path) -> None:
    with publishing(mountpoint) as (m, cache):
        epoch = m.connection.epoch
        write(m / "f", b"w" * BLOCK, 3 * BLOCK, os.O_DIRECT)
        publish(m, cache, epoch)
        with m.passed("read", "stale"):
            assert read_direct(m / "f", BLOCK, 3 * BLOCK) == b"w" * BLOCK
        # The other blocks have not changed.
        with m.answered("read"):
            assert read_direct(m / "f", BLOCK, 2 * BLOCK) == fill("d")[2 * BLOCK : 3 * BLOCK]


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("epoch_read", ["before", "within"])
def test_data_read_while_a_write_is_in_flight_is_not_served(
    mountpoint: Path, point: str, epoch_read: str
) -> None:
    """The data is read before or after the daemon carries the write out. Neither is ever served."""
    with publishing(mountpoint, open_flags=FOPEN_NOFLUSH) as (m, cache):
        epoch = m.connection.epoch
        m.hold("write", point)
        call = Call(write, m / "f", b"w" * BLOCK, 0, os.O_DIRECT)
        m.wait_held()
        if epoch_read == "within":
            epoch = m.connection.epoch
        truth = bytes(m.call("inode", "f").data)
        assert truth[:1] == (b"w" if point == "after" else fill("d")[:1])
        publish(m, cache, epoch, truth)
        with m.passed("read", "stale"):
            assert read_direct(m / "f", BLOCK) == truth[:BLOCK]
        publish(m, cache, epoch, truth)
        m.release()
        assert call.result() == BLOCK
        assert read_direct(m / "f", BLOCK) == b"w" * BLOCK
        done = publish(m, cache, epoch, truth)
        assert done.newer == 1
        with m.answered("read"):
            assert read_direct(m / "f", BLOCK) == b"w" * BLOCK
        m.call("inval_inode", "f")
        with m.passed("read", "stale"):
            assert read_direct(m / "f", BLOCK) == b"w" * BLOCK


def test_publish_of_older_data_keeps_newer_blocks(mountpoint: Path) -> None:
    with publishing(mountpoint) as (m, cache):
        epoch = m.connection.epoch
        write(m / "f", b"w", 0, os.O_DIRECT)
        warm_data = b"w" + fill("d")[1:]
        assert read_direct(m / "f", SIZE + 1) == warm_data
        done = publish(m, cache, epoch)
        assert (done.stored, done.newer) == (0, BLOCKS)
        with m.answered("read"):
            assert read_direct(m / "f", SIZE) == warm_data


def test_data_published_for_a_reused_nodeid_is_not_served(mountpoint: Path) -> None:
    with publishing(mountpoint, reuse_nodeids=True) as (m, cache):
        nodeid, epoch = m.call("nodeid", "f"), m.connection.epoch
        publish(m, cache, epoch)
        os.unlink(m / "f")
        eventually(lambda: m.drop() or nodeid not in m.call("counts"))
        for name in ("x", "y"):
            make(m, name, fill(name))
        assert nodeid in [m.call("nodeid", name) for name in ("x", "y")]
        for again in (False, True):
            if again:
                cache.publish(nodeid, 0, fill("d"), epoch=epoch, valid_ns=NEVER_NS, end=True)
            for name in ("x", "y"):
                drop_pages(m / name)
                assert read_direct(m / name, SIZE + 1) == fill(name)
                assert read(m / name) == fill(name)


def test_data_with_an_invalid_epoch_is_not_served(mountpoint: Path) -> None:
    with publishing(mountpoint) as (m, cache):
        for block, epoch in enumerate((m.connection.epoch + (1 << 40), NEVER_NS, 0)):
            publish(m, cache, epoch, fill("p"))
            with m.passed("read"):
                part = fill("d")[block * BLOCK : (block + 1) * BLOCK]
                assert read_direct(m / "f", BLOCK, block * BLOCK) == part


def test_reads_during_publishing_and_writes_are_not_torn_or_older(
    mountpoint: Path,
) -> None:
    """Each block holds one number that never decreases, so a torn or an old read is noticed."""
    with publishing(mountpoint, capacity={"blocks": 16}) as (m, cache):
        numbered = Numbered(m)
        os.stat(m / "n")
        nodeid = m.call("nodeid", "n")
        stored = [0]

        def publish_all() -> None:
            epoch = m.connection.epoch
            data = bytes(m.call("inode", "n").data)
            done = cache.publish(nodeid, 0, data, epoch=epoch, valid_ns=0, end=True)
            stored[0] += done.stored

        numbered.run(lambda: min(numbered.reads, numbered.writes, stored[0]) > 500, publish_all)
        assert path_count(m, "requests") > 50


# Publishers that die, and damaged maps


@pytest.mark.parametrize("lock", [1, WRITER - 1, WRITER, 0xFFFFFFFF])
def test_slots_with_a_corrupted_lock_are_not_used(mountpoint: Path, lock: int) -> None:
    with publishing(mountpoint) as (m, cache):
        warm(m)
        overwrite_tags(m, 0, struct.pack("=I", lock))
        write(m / "f", b"w" * 10, 0, os.O_DIRECT)
        expected = b"w" * 10 + fill("d")[10:]
        done = publish(m, cache, m.connection.epoch, expected)
        assert (done.stored, done.busy) == (0, BLOCKS)
        assert read_direct(m / "f", SIZE + 1) == expected
        make(m, "g", fill("g"))
        nodeid, epoch = m.call("nodeid", "g"), m.connection.epoch
        done = cache.publish(nodeid, 0, fill("g"), epoch=epoch, valid_ns=NEVER_NS, end=True)
        assert done.stored == BLOCKS
        with m.answered("read"):
            assert read_direct(m / "g", SIZE) == fill("g")


def test_slot_locked_by_a_dead_publisher_is_not_used(mountpoint: Path) -> None:
    """The other seven slots of the set are filled and published to as usual."""
    with publishing(mountpoint, capacity={"blocks": 8}) as (m, cache):
        assert m.attachment
        tags = m.attachment.maps["tags"]
        raw = bytearray(libbpf.map_lookup(tags.fd, bytes(4), 512) or b"")
        struct.pack_into("=I", raw, 0, WRITER)
        libbpf.map_update(tags.fd, bytes(4), bytes(raw))

        def kept() -> list[int]:
            return [tag.block for tag in tags.slots()]  # type: ignore[attr-defined]

        def served(data: bytes) -> None:
            assert len(kept()) == 7
            for block in kept():
                with m.answered("read"):
                    part = data[block * BLOCK : (block + 1) * BLOCK]
                    assert read_direct(m / "f", BLOCK, block * BLOCK) == part

        assert read_direct(m / "f", SIZE + 1) == fill("d")
        served(fill("d"))
        done = publish(m, cache, m.connection.epoch, fill("p"))
        assert done.stored == BLOCKS
        served(fill("p"))


def _die_publishing(cache: DataCache, nodeid: int, epoch: int, ready: int) -> None:
    os.write(ready, b"x")
    while True:
        cache.publish(nodeid, 0, fill("d"), epoch=epoch, valid_ns=NEVER_NS, end=True)


def test_reads_are_right_after_a_publisher_was_killed(mountpoint: Path) -> None:
    """The publisher may die at any instruction: all bytes that are served are right."""
    with publishing(mountpoint) as (m, cache):
        nodeid, lost = m.call("nodeid", "f"), 0
        for _ in range(3):
            from_child, to = os.pipe()
            call = Call(_die_publishing, cache, nodeid, m.connection.epoch, to)
            assert os.read(from_child, 1) == b"x"
            for n in range(20):
                assert (
                    read_direct(m / "f", BLOCK, n % 10 * BLOCK)
                    == (fill("d")[n % 10 * BLOCK :][:BLOCK])
                )
            call.kill()
            os.close(from_child)
            os.close(to)
            assert read_direct(m / "f", SIZE + 1) == fill("d")
            write(m / "f", fill("d")[:BLOCK], 0, os.O_DIRECT)
            assert m.attachment
            locks = [
                tag.lock
                for tags in m.attachment.maps["tags"].read_all().values()
                for tag in tags
                if tag.lock
            ]
            assert set(locks) <= {WRITER}
            assert len(locks) <= lost + 1
            lost = len(locks)


# Publishing by a file system of the package


class _Prefetching(Passthrough):
    """A pass-through that publishes a file when it is opened, so that it gets no READ."""

    def backing(self, *args: Any, **kwargs: Any) -> bool:
        return False

    async def open(self, inode: int, flags: int, ctx: Any) -> Any:
        opened = await super().open(inode, flags, ctx)
        epoch = self.efuse.epoch()
        data = await super().read(opened.fh, 0, 1 << 20)
        self.publish_data(inode, 0, data, epoch=epoch, valid_ns=10**12, end=True)
        return opened


def test_prefetching_file_system_publishes_its_data(mountpoint: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    data = os.urandom(40 * BLOCK + 5)
    (source / "p").write_bytes(data)

    async def main() -> None:
        operations = _Prefetching(str(source))
        async with served(operations, mountpoint):
            path = str(mountpoint / "p")
            for _ in range(2):
                assert await trio.to_thread.run_sync(read_direct, path, len(data) + 1) == data
                assert await trio.to_thread.run_sync(read, path) == data
            assert operations.efuse.statistics().requests.get("read", 0) == 0
            assert operations.efuse.connection is not None
            counts = Connection(operations.efuse.connection).counts("stats/read")
            assert counts["daemon"] == 0
            assert counts["hits"] > 0

    trio.run(main)
