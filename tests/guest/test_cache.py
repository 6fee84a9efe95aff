# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test READs from the data cache: what it has, how it is filled, and what it must never serve."""

from __future__ import annotations

import mmap
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from efuse.bpf import libbpf
from efuse.bpf.spec import WAYS
from efuse.bpf.values import TAG_BYTES
from tests.guest.support.backing_files import backing, make
from tests.guest.support.daemons import Call, Mount, eventually, mounted
from tests.guest.support.data_cache import (
    BLOCKS,
    CHANGES,
    cached,
    overwrite_tags,
    path_count,
    requests,
    warm,
)
from tests.guest.support.file_data import BLOCK, SIZE, drop_pages, fill, read, read_direct, write
from tests.guest.support.numbered import Numbered
from tests.guest.support.wire import FOPEN_NOFLUSH

ASYNC_DIO = 1 << 15
# FUSE sends direct I/O in the background if the daemon asks for it, as libfuse's daemons do.
both_ways = pytest.mark.parametrize("dio", [0, ASYNC_DIO], ids=["dio", "async_dio"])


# Hits


@both_ways
def test_second_read_is_answered_from_the_cache(mountpoint: Path, dio: int) -> None:
    with cached(mountpoint, generic_flags=dio) as m:
        warm(m)
        for _ in range(2):
            with m.answered("read"):
                assert read_direct(m / "f", SIZE) == fill("d")
        assert path_count(m, "requests") == 2
        assert path_count(m, "bytes") == 2 * SIZE
        assert path_count(m, "partial") == 0


def test_read_of_any_offset_and_size_is_answered_from_the_cache(mountpoint: Path) -> None:
    with cached(mountpoint) as m:
        warm(m)
        for offset in (0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 7, SIZE - 1):
            for size in (1, 512, BLOCK, 3 * BLOCK, 1 << 17):
                assert read_direct(m / "f", size, offset) == fill("d")[offset : offset + size]
        assert "read" not in m.asked()


def test_preadv_with_small_buffers_is_answered_from_the_cache(mountpoint: Path) -> None:
    with cached(mountpoint) as m:
        warm(m)
        buffers = [bytearray(n) for n in (1, 4095, 3, 100, 8192, 5, 1000)]
        fd = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        with m.answered("read"):
            got = os.preadv(fd, buffers, 7)
        os.close(fd)
        assert b"".join(buffers)[:got] == fill("d")[7 : 7 + got]
        assert got == sum(map(len, buffers))


@pytest.mark.parametrize("size", [0, 1, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
@both_ways
def test_short_file_is_answered_from_the_cache_including_its_end(
    mountpoint: Path, size: int, dio: int
) -> None:
    with cached(mountpoint, generic_flags=dio) as m:
        make(m, "g", fill("g", size))
        for _ in range(2):
            m.log()
            assert read_direct(m / "g", 1 << 16) == fill("g", size)
        assert "read" not in m.asked()


def test_buffered_reads_mmap_and_sendfile_are_answered_from_the_cache(
    mountpoint: Path, tmp_path: Path
) -> None:
    with cached(mountpoint) as m:
        make(m, "h", fill("h", 1 << 20))
        for name, data in (("f", fill("d")), ("h", fill("h", 1 << 20))):
            read_direct(m / name, len(data) + 1)
            m.log()
            assert read(m / name, len(data)) == data
            drop_pages(m / name)
            with open(m / name, "rb") as file:
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                    assert view[:] == data
                drop_pages(m / name)
                with (tmp_path / "out").open("wb") as out:
                    while os.sendfile(out.fileno(), file.fileno(), None, 1 << 20):
                        pass
            assert (tmp_path / "out").read_bytes() == data
            assert "read" not in m.asked()


def test_read_ahead_fills_the_cache(mountpoint: Path) -> None:
    with cached(mountpoint) as m:
        make(m, "h", fill("h", 1 << 20))
        assert read(m / "h", 1 << 20) == fill("h", 1 << 20)
        drop_pages(m / "h")
        m.log()
        assert read(m / "h", 1 << 20) == fill("h", 1 << 20)
        assert "read" not in m.asked()


# Parts of a READ


def test_only_missing_blocks_of_a_read_go_to_the_daemon(mountpoint: Path) -> None:
    with cached(mountpoint) as m:
        read_direct(m / "f", 2 * BLOCK, 0)
        read_direct(m / "f", BLOCK, 4 * BLOCK)
        requests(m)
        assert read_direct(m / "f", 8 * BLOCK) == fill("d")[: 8 * BLOCK]
        assert requests(m) == [(2 * BLOCK, 2 * BLOCK), (5 * BLOCK, 3 * BLOCK)]
        assert path_count(m, "partial") == 1
        with m.answered("read"):
            assert read_direct(m / "f", 8 * BLOCK) == fill("d")[: 8 * BLOCK]


def test_read_with_many_gaps_requests_the_last_ones_together(mountpoint: Path) -> None:
    with cached(mountpoint) as m:
        make(m, "h", fill("h", 30 * BLOCK))
        for n in range(0, 30, 2):
            read_direct(m / "h", BLOCK, n * BLOCK)
        requests(m)
        assert read_direct(m / "h", 30 * BLOCK) == fill("h", 30 * BLOCK)
        assert requests(m) == [
            *((n * BLOCK, BLOCK) for n in (1, 3, 5, 7)),
            (9 * BLOCK, 21 * BLOCK),
        ]


def test_partly_cached_reads_at_random_offsets_return_the_right_bytes(mountpoint: Path) -> None:
    rng = random.Random(20261121)
    with cached(mountpoint) as m:
        data = fill("h", 100 * BLOCK + 77)
        make(m, "h", data)
        for n in range(60):
            offset, size = rng.randrange(len(data)), rng.choice([1, 5000, 30000, 1 << 17])
            assert read_direct(m / "h", size, offset) == data[offset : offset + size]
            if n % 10 == 9:
                m.connection.invalidate()
        assert path_count(m, "partial") > 5


def test_missing_blocks_are_filled_from_the_backing_file(mountpoint: Path, lower: Path) -> None:
    """If a file has a backing file, blocks come from it instead of the daemon, and are cached."""
    with cached(mountpoint) as m:
        warm(m)
        m.call("map_extent", "f", backing(lower, fill("b")), os.O_RDONLY)
        m.connection.forced_path = "cache"
        m.log()
        # The daemon's data from before it mapped the file is void.
        assert read_direct(m / "f", BLOCK, 2 * BLOCK) == fill("b")[2 * BLOCK : 3 * BLOCK]
        partial = path_count(m, "partial")
        assert read_direct(m / "f", SIZE + 1) == fill("b")
        assert path_count(m, "partial") == partial + 1
        assert read_direct(m / "f", SIZE + 1) == fill("b")
        assert path_count(m, "partial") == partial + 1
        assert "read" not in m.asked()


@pytest.mark.parametrize("how", ["map", "unmap", "version"])
def test_blocks_of_an_extent_are_void_after_it_is_replaced_or_unmapped(
    mountpoint: Path, lower: Path, how: str
) -> None:
    with cached(mountpoint, path="cache") as m:
        m.call("map_extent", "f", backing(lower, fill("b")), os.O_RDONLY)
        for _ in range(2):
            assert read_direct(m / "f", SIZE + 1) == fill("b")
        if how == "map":
            m.call("map_extent", "f", backing(lower, fill("n"), "new"), os.O_RDONLY)
        elif how == "unmap":
            m.call("unmap_extents", "f")
        else:
            m.call("unmap_extents", "f", offset=SIZE + BLOCK, length=1, version=3)
        assert read_direct(m / "f", SIZE + 1) == fill("n" if how == "map" else "d")


def test_blocks_of_a_sealed_extent_are_not_cached(mountpoint: Path, lower: Path) -> None:
    """The backing file is not checked when a block is served, so it may have changed by then."""
    with cached(mountpoint, path="cache") as m:
        path = backing(lower, fill("b"))
        m.call("map_extent", "f", path, os.O_RDONLY, sealed=True)
        m.log()
        for _ in range(2):
            assert read_direct(m / "f", SIZE + 1) == fill("b")
        assert "read" not in m.asked()
        with open(path, "r+b") as file:
            file.write(b"x")
        assert read_direct(m / "f", SIZE + 1) == fill("d")


# Writes


def test_read_after_any_write_returns_the_new_bytes(mountpoint: Path) -> None:
    with cached(mountpoint) as m:
        warm(m)
        expected = bytearray(fill("d"))
        for offset, data in [
            (0, b"whole block".ljust(BLOCK, b"!")),
            (3 * BLOCK + 5, b"part"),
            (5 * BLOCK - 3, b"across"),
            (6 * BLOCK, b"x" * 3 * BLOCK),
            (SIZE - 2, b"over the end"),
        ]:
            for flags in (0, os.O_DIRECT):
                write(m / "f", data, offset, flags)
                expected[offset : offset + len(data)] = data
                assert read_direct(m / "f", 1 << 17) == expected
                assert read(m / "f", 1 << 17) == expected


@both_ways
def test_fully_written_block_stays_in_the_cache(mountpoint: Path, dio: int) -> None:
    with cached(mountpoint, generic_flags=dio) as m:
        warm(m)
        fd = os.open(m / "f", os.O_RDWR | os.O_DIRECT)
        block = mmap.mmap(-1, BLOCK)
        block[:] = fill("w", BLOCK)
        assert os.pwritev(fd, [block], 2 * BLOCK) == BLOCK
        m.log()
        with m.answered("read"):
            assert read_direct(m / "f", BLOCK, 2 * BLOCK) == fill("w", BLOCK)
        os.close(fd)
        with m.answered("read", times=BLOCKS - 1):
            for n in (*range(2), *range(3, BLOCKS)):
                part = fill("d")[n * BLOCK : (n + 1) * BLOCK]
                assert read_direct(m / "f", BLOCK, n * BLOCK) == part


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["buffered", "direct"])
def test_large_write_is_not_cached_and_voids_its_blocks(mountpoint: Path, flags: int) -> None:
    """Most large writes belong to a stream. The cached blocks are void, and the daemon is asked."""
    with cached(mountpoint) as m:
        warm(m)
        write(m / "f", b"l" * (8 * BLOCK), BLOCK, flags)
        for n in range(1, 9):
            with m.passed("read", "stale"):
                assert read_direct(m / "f", BLOCK, n * BLOCK) == b"l" * BLOCK
        with m.answered("read"):
            assert read_direct(m / "f", BLOCK) == fill("d")[:BLOCK]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__[1:])
def test_read_after_any_change_returns_the_new_content(
    mountpoint: Path, change: Callable[[Mount], bytes]
) -> None:
    with cached(mountpoint) as m:
        make(m, "g", fill("g"))
        warm(m)
        hits = m.count("read", "hits")
        assert read_direct(m / "f", SIZE) == fill("d")
        assert m.count("read", "hits") > hits
        expected = change(m)
        assert read_direct(m / "f", 1 << 17) == expected
        assert read(m / "f", 1 << 17) == expected


def test_read_after_rename_over_and_nodeid_reuse_returns_the_new_file(mountpoint: Path) -> None:
    with cached(mountpoint, reuse_nodeids=True) as m:
        warm(m)
        make(m, "g", fill("g"))
        read_direct(m / "g", SIZE + 1)
        os.rename(m / "g", m / "f")
        assert read_direct(m / "f", SIZE + 1) == fill("g")
        nodeid = m.call("nodeid", "f")
        os.unlink(m / "f")
        eventually(lambda: m.drop() or nodeid not in m.call("counts"))
        for name in ("x", "y"):
            make(m, name, fill(name))
        assert m.call("reused") > 0
        for name in ("x", "y"):
            assert read_direct(m / name, SIZE + 1) == fill(name)


# Races: the order in which the daemon acts, and in which the kernel learns of it


@both_ways
def test_reply_to_a_read_that_crosses_a_write_is_not_cached(mountpoint: Path, dio: int) -> None:
    with cached(mountpoint, generic_flags=dio) as m:
        m.hold("read", "after")
        call = Call(read_direct, m / "f", BLOCK, 0)
        m.wait_held()
        write(m / "f", b"w" * BLOCK, 0, os.O_DIRECT)
        m.release()
        assert call.result() == fill("d")[:BLOCK]
        assert read_direct(m / "f", BLOCK) == b"w" * BLOCK


def test_read_of_a_block_with_a_write_in_flight_goes_to_the_daemon(mountpoint: Path) -> None:
    """Neither the old nor the new bytes are known to be right, so the daemon decides."""
    for point, seen in (("before", fill("d")[:BLOCK]), ("after", b"w" * BLOCK)):
        with cached(mountpoint, open_flags=FOPEN_NOFLUSH) as m:
            warm(m)
            m.hold("write", point)
            call = Call(write, m / "f", b"w" * BLOCK, 0, os.O_DIRECT)
            m.wait_held()
            with m.passed("read", "stale"):
                assert read_direct(m / "f", BLOCK) == seen
            with m.answered("read"):
                assert read_direct(m / "f", BLOCK, BLOCK) == fill("d")[BLOCK : 2 * BLOCK]
            m.release()
            assert call.result() == BLOCK
            assert read_direct(m / "f", BLOCK) == b"w" * BLOCK


def test_block_is_not_cached_from_a_write_that_crosses_another(mountpoint: Path) -> None:
    """The daemon carries out the second write first, and its reply arrives last."""
    with cached(mountpoint, open_flags=FOPEN_NOFLUSH) as m:
        warm(m)
        m.hold("write", "after")
        first = Call(write, m / "f", b"1" * BLOCK, 0, os.O_DIRECT)
        m.wait_held()
        # FUSE sends the direct writes of an inode one after the other, so the daemon makes this one
        # itself.
        m.model.put("f", b"2" * BLOCK + fill("d")[BLOCK:])
        m.call("inval_inode", "f")
        m.release()
        assert first.result() == BLOCK
        assert read_direct(m / "f", BLOCK) == b"2" * BLOCK


def test_read_after_a_failed_write_returns_the_old_bytes(mountpoint: Path) -> None:
    with cached(mountpoint) as m:
        warm(m)
        m.call("deny", "write", 0, 5)
        with pytest.raises(OSError, match="Input/output"):
            write(m / "f", b"w" * BLOCK, 0, os.O_DIRECT)
        assert read_direct(m / "f", BLOCK) == fill("d")[:BLOCK]


def test_reads_during_writes_are_not_torn_or_older_than_earlier_reads(mountpoint: Path) -> None:
    """Each block holds one number that never decreases, so a torn or an old read is noticed."""
    with cached(mountpoint, capacity={"blocks": 16}) as m:
        numbered = Numbered(m)
        numbered.run(lambda: numbered.reads > 1000 and numbered.writes > 300)
        assert path_count(m, "requests") > 50


# Rules


def test_reads_in_strict_mode_and_of_direct_io_files_go_to_the_daemon(mountpoint: Path) -> None:
    for options in ({"consistency": "strict"}, {"open_flags": 1}):
        with cached(mountpoint, **options) as m:
            for _ in range(2):
                with m.passed("read", "declined"):
                    assert read_direct(m / "f", BLOCK) == fill("d")[:BLOCK]


def test_cached_blocks_expire_with_the_attributes(mountpoint: Path) -> None:
    with cached(mountpoint, consistency="ttl", attr_timeout=0.0) as m:
        for _ in range(2):
            with m.passed("read"):
                assert read_direct(m / "f", BLOCK) == fill("d")[:BLOCK]
    with cached(mountpoint, consistency="ttl", attr_timeout=1.0) as m:
        assert read_direct(m / "f", BLOCK) == fill("d")[:BLOCK]
        m.model.put("f", fill("n"))
        eventually(lambda: read_direct(m / "f", BLOCK) == fill("n")[:BLOCK])
        assert m.count("read", "expired") > 0
        assert m.count("read", "hits") > 0


def test_read_after_open_in_cto_mode_goes_to_the_daemon(mountpoint: Path) -> None:
    with cached(mountpoint, consistency="cto", attr_timeout=3600.0) as m:
        fd = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, BLOCK)
        os.preadv(fd, [buffer], 0)
        with m.answered("read"):
            os.preadv(fd, [buffer], 0)
        m.model.put("f", fill("n"))
        assert read_direct(m / "f", BLOCK) == fill("n")[:BLOCK]
        os.close(fd)


def test_full_cache_evicts_blocks(mountpoint: Path) -> None:
    with cached(mountpoint, capacity={"blocks": 64}) as m:
        data = fill("h", 1 << 20)
        make(m, "h", data)
        for _ in range(2):
            for n in range(256):
                part = data[n * BLOCK : (n + 1) * BLOCK]
                assert read_direct(m / "h", BLOCK, n * BLOCK) == part
        assert m.connection.evicted > 200
        assert len(list(m.attachment.maps["tags"].slots())) <= 64  # type: ignore[union-attr]


def test_cache_of_capacity_0_answers_nothing(mountpoint: Path) -> None:
    with cached(mountpoint, capacity={"blocks": 0}) as m:
        for _ in range(2):
            with m.passed("read"):
                assert read_direct(m / "f", BLOCK) == fill("d")[:BLOCK]


# A program that offers another block than the requested one

_ONE_SHELF = """
#include "efuse.bpf.h"

BPF_TABLE("array", int, struct efuse_tag, shelf, 1);
BPF_TABLE("array", int, struct efuse_slot, held, 1);

int block(struct efuse_req *req)
{
    int zero = 0;
    struct efuse_tag *tag = shelf.lookup(&zero);
    struct efuse_slot *slot = held.lookup(&zero);

    if (!tag || !slot || !tag->nodeid)
        return EFUSE_PASS;
    return efuse_reply_block(req, tag, sizeof(*tag), slot, sizeof(*slot));
}
"""


def test_block_that_a_handler_offers_for_another_place_is_a_miss(mountpoint: Path) -> None:
    with mounted(mountpoint, attach=False, consistency="exclusive") as m:
        attachment = m.attach(handlers={"block": _ONE_SHELF}, capacity={"blocks": WAYS})
        make(m, "f", fill("d"))
        make(m, "g", fill("g"))
        assert read_direct(m / "f", BLOCK) == fill("d")[:BLOCK]
        tags = libbpf.map_lookup(attachment.maps["tags"].fd, bytes(4), WAYS * TAG_BYTES) or b""
        ways = (tags[at : at + TAG_BYTES] for at in range(0, len(tags), TAG_BYTES))
        (tag,) = (way for way in ways if any(way[8:16]))  # The way with a nodeid is in use.
        libbpf.map_update(attachment.maps["shelf"].fd, bytes(4), tag)
        libbpf.map_update(attachment.maps["held"].fd, bytes(4), fill("s", BLOCK))
        with m.answered("read"):
            assert read_direct(m / "f", BLOCK) == fill("s", BLOCK)
        for name, number, letter in (("f", 1, "d"), ("g", 0, "g")):
            with m.passed("read", "miss"):
                at = number * BLOCK
                assert read_direct(m / name, BLOCK, at) == fill(letter)[at : at + BLOCK]


# Maps with damaged contents


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, struct.pack("=I", 1 << 31)),
        (0, struct.pack("=I", (1 << 31) - 1)),
        (0, struct.pack("=I", 0xFFFFFFFF)),
        (8, struct.pack("=Q", 77)),
        (16, struct.pack("=Q", 1 << 60)),
        (24, struct.pack("=Q", 0)),
        (24, struct.pack("=Q", (1 << 64) - 1)),
        (48, struct.pack("=I", 5000)),
        (48, struct.pack("=I", 0xFFFFFFFF)),
    ],
)
def test_corrupted_tag_is_a_miss(mountpoint: Path, at: int, value: bytes) -> None:
    with cached(mountpoint) as m:
        warm(m)
        overwrite_tags(m, at, value)
        with m.passed("read"):
            assert read_direct(m / "f", 4 * BLOCK) == fill("d")[: 4 * BLOCK]


def test_tags_copied_from_another_mount_are_void(mountpoint: Path) -> None:
    first, second = mountpoint / "1", mountpoint / "2"
    first.mkdir()
    second.mkdir()
    with cached(first) as one, cached(second) as two:
        warm(one)
        two.model.put("f", fill("e"))
        assert one.attachment
        assert two.attachment
        for name, size in (("tags", 512), ("blocks", 4096)):
            source, target = one.attachment.maps[name].fd, two.attachment.maps[name].fd
            for number in range(one.attachment.maps[name].definition.max_entries):
                key = number.to_bytes(4, "little")
                libbpf.map_update(target, key, libbpf.map_lookup(source, key, size) or b"")
        assert one.call("nodeid", "f") == two.call("nodeid", "f")
        assert read_direct(two / "f", SIZE + 1) == fill("e")


# Large requests on every path


@pytest.mark.parametrize("size", [1 << 20, 8 << 20])
def test_large_read_and_write_are_one_request_on_every_path(
    mountpoint: Path, lower: Path, size: int
) -> None:
    """FUSE makes one request of it, and the daemon gets parts of the size that it accepts."""
    data = fill("L", size + 5)
    with cached(mountpoint, capacity={"blocks": 4096}) as m:
        m.connection.max_request = size
        make(m, "h", data)
        count = m.count("read", "requests")
        assert read_direct(m / "h", size) == data[:size]
        assert m.count("read", "requests") - count <= 2
        m.log()
        assert read_direct(m / "h", size) == data[:size]
        assert path_count(m, "requests") >= 1
        new = fill("N", size)
        count = m.count("write", "requests")
        assert write(m / "h", new, 0, os.O_DIRECT) == size
        assert m.count("write", "requests") - count <= 2
        assert read_direct(m / "h", size) == new
        assert bytes(m.call("inode", "h").data) == new + data[size:]
        m.call("map_extent", "h", backing(lower, data), os.O_RDWR, write=True)
        m.log()
        assert read_direct(m / "h", size) == data[:size]
        assert write(m / "h", new, 0, os.O_DIRECT) == size
        assert read_direct(m / "h", size) == new
        assert not {"read", "write"} & set(m.asked())


def test_read_for_the_page_cache_has_parts_of_whole_pages(mountpoint: Path) -> None:
    """FUSE clears what a READ for the page cache leaves of a page."""
    data = fill("P", (1 << 20) + 5)
    with mounted(mountpoint, consistency="exclusive", path="daemon", max_read=5000) as m:
        m.connection.max_request = 1 << 20
        make(m, "h", data)
        m.log()
        count = m.count("read", "requests")
        assert read(m / "h", len(data)) == data
        parts = len([name for name in m.asked() if name == "read"])
        assert m.count("read", "requests") - count < parts
