# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test where a direct read ends, where the daemon decides, and what it does to FUSE's pages."""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

import pytest

from tests.guest.support.backing_files import make
from tests.guest.support.daemons import force_stat, mounted, running
from tests.guest.support.data_cache import cached
from tests.guest.support.file_data import BLOCK, SIZE, fill, pread_direct, read_direct
from tests.guest.support.file_pages import LONG
from tests.guest.support.manual_daemon import until
from tests.guest.support.wire import FOPEN_KEEP_CACHE, FOPEN_NOFLUSH, FUSE_WRITEBACK_CACHE

_KEEP = FOPEN_NOFLUSH | FOPEN_KEEP_CACHE
_ASYNC_DIO = 1 << 15
_both_ways = pytest.mark.parametrize("dio", [0, _ASYNC_DIO], ids=["dio", "async_dio"])


@_both_ways
def test_direct_read_of_the_last_block_asks_for_the_whole_block(mountpoint: Path, dio: int) -> None:
    """A daemon that passes O_DIRECT on cannot read a part of a block."""
    with mounted(mountpoint, generic_flags=dio, **LONG) as m:
        make(m, "f", fill("d", BLOCK + 100))
        m.call("reads")
        assert read_direct(m / "f", BLOCK, BLOCK) == fill("d", BLOCK + 100)[BLOCK:]
        assert [(offset, size) for offset, size in m.call("reads")] == [(BLOCK, BLOCK)]


@_both_ways
def test_direct_read_shows_bytes_beyond_the_size_that_fuse_knows(
    mountpoint: Path, dio: int
) -> None:
    """The file's attributes are still valid. On plain FUSE the daemon decides where it ends."""
    with mounted(mountpoint, generic_flags=dio, **LONG) as m:
        make(m, "f", b"d" * 100)
        m.model.put("f", b"d" * 100 + b"n" * 100)
        assert read_direct(m / "f", BLOCK) == b"d" * 100 + b"n" * 100


@_both_ways
def test_end_of_a_file_that_a_direct_read_found_is_cached(mountpoint: Path, dio: int) -> None:
    """In ttl only a short READ tells where a file ends."""
    with cached(mountpoint, consistency="ttl", generic_flags=dio, **LONG) as m:
        assert read_direct(m / "f", SIZE + BLOCK) == fill("d")
        m.log()
        assert read_direct(m / "f", SIZE + BLOCK) == fill("d")
        assert "read" not in m.asked()


@_both_ways
def test_rest_of_a_short_direct_read_shows_no_zeros_if_the_file_grew_during_a_write(
    mountpoint: Path, dio: int
) -> None:
    """Linux alone takes the rest of it from the pages. The page is being written."""
    with mounted(mountpoint, attach=False, open_flags=_KEEP, generic_flags=dio, **LONG) as m:
        make(m, "f", b"d" * 100)
        fd = os.open(m / "f", os.O_RDWR)
        assert os.pread(fd, BLOCK, 0) == b"d" * 100
        m.hold("read", "after")
        with running(read_direct, m / "f", BLOCK) as reading:
            m.wait_held()
            m.hold("write", "before")
            with running(os.pwrite, fd, b"ww", 0) as writing:
                m.wait_held(2)
                m.model.put("f", b"d" * 100 + b"n" * 100)
                assert force_stat(fd).st_size == 200
                m.release("read")
                until(lambda: reading.done() or m.keeps_waiting(reading, 1))
                m.release()
                assert writing.result() == 2
                seen = reading.result()
        os.close(fd)
        assert seen in (b"d" * 100, b"d" * 100 + b"n" * 100)


@_both_ways
def test_rest_of_a_direct_read_shows_no_zeros_if_the_file_grows_while_its_pages_are_dropped(
    mountpoint: Path, dio: int
) -> None:
    """The direct READ ended where the file ended. Another page is being read, and is locked."""
    data = fill("d", BLOCK) + b"d" * 100
    with mounted(mountpoint, attach=False, open_flags=_KEEP, generic_flags=dio, **LONG) as m:
        make(m, "f", data)
        fd = os.open(m / "f", os.O_RDWR)
        direct = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        assert os.pread(fd, BLOCK, BLOCK) == b"d" * 100
        m.hold("read", "before")
        with running(os.pread, fd, BLOCK, 0) as filling:
            m.wait_held()
            m.hold("write", "before")
            with running(os.pwrite, fd, b"ww", BLOCK) as writing:
                m.wait_held(2)
                m.call("pause")
                with running(pread_direct, direct, BLOCK, BLOCK) as reading:
                    until(lambda: "fuse_direct_IO" in reading.within() and reading.sleeps())
                    m.connection.invalidate()  # the pages are void; the locked one stays
                    m.call("resume")
                    # The READ has brought 100 bytes. Linux alone would look at the pages now.
                    until(lambda: reading.done() or reading.sleeps_in("efuse_"))
                    m.model.put("f", data + b"n" * 100)
                    with running(force_stat, fd) as asking:
                        until(lambda: asking.done() or m.keeps_waiting(asking, 2))
                        m.release("read")
                        until(lambda: reading.done() or m.keeps_waiting(reading, 1))
                        m.release()
                        assert writing.result() == 2
                        seen = reading.result()
                        filling.result()
                        asking.result()
        os.close(direct)
        os.close(fd)
        assert b"\0" not in seen


def test_rest_of_a_direct_read_that_fuse_cut_short_shows_no_zeros(mountpoint: Path) -> None:
    """With async_dio FUSE asks only for the file as it knows it, rounded up, and gets all of it."""
    with mounted(mountpoint, attach=False, open_flags=_KEEP, generic_flags=_ASYNC_DIO, **LONG) as m:
        make(m, "f", b"d" * 100)
        fd = os.open(m / "f", os.O_RDWR)
        direct = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        m.call("reads")
        assert pread_direct(direct, 8 << 20, 0) == b"d" * 100
        size = sum(asked for _, asked in m.call("reads"))
        assert BLOCK <= size < 8 << 20
        old = b"d" * (size + 100)
        m.model.put("f", old)  # FUSE still knows 100 bytes
        m.hold("read", "after")
        with running(pread_direct, direct, size + BLOCK, 0) as reading:
            m.wait_held()
            assert force_stat(fd).st_size == size + 100
            assert os.pread(fd, BLOCK, size) == b"d" * 100
            m.hold("write", "before")
            with running(os.pwrite, fd, b"ww", size) as writing:
                m.wait_held(2)
                m.model.put("f", old + b"n" * 100)
                assert force_stat(fd).st_size == size + 200
                m.release("read")
                until(lambda: reading.done() or m.keeps_waiting(reading, 1))
                m.release()
                assert writing.result() == 2
                seen = reading.result()
        os.close(direct)
        os.close(fd)
        assert len(seen) >= size
        assert b"\0" not in seen


@_both_ways
def test_direct_read_of_a_file_that_became_shorter_ends_where_the_daemon_says(
    mountpoint: Path, dio: int
) -> None:
    """FUSE still knows the old size, and has the old page. Plain FUSE fails here, too."""
    with mounted(mountpoint, attach=False, open_flags=_KEEP, generic_flags=dio, **LONG) as m:
        make(m, "f", b"d" * 200)
        fd = os.open(m / "f", os.O_RDWR)
        assert os.pread(fd, BLOCK, 0) == b"d" * 200
        m.model.put("f", b"e" * 100)
        seen = read_direct(m / "f", BLOCK)
        os.close(fd)
        assert seen == b"e" * 100


@_both_ways
def test_direct_read_before_written_pages_shows_the_hole(mountpoint: Path, dio: int) -> None:
    """In a write-back mount the daemon knows only an empty file, and answers with no bytes."""
    flags = dio | FUSE_WRITEBACK_CACHE
    with mounted(mountpoint, open_flags=_KEEP, generic_flags=flags, **LONG) as m:
        make(m, "f", b"")
        fd = os.open(m / "f", os.O_RDWR)
        assert os.pwrite(fd, b"w", 8 * BLOCK) == 1
        assert read_direct(m / "f", BLOCK) == bytes(BLOCK)
        os.close(fd)


@_both_ways
def test_direct_read_drops_void_pages_that_are_mapped(mountpoint: Path, dio: int) -> None:
    """The daemon changes the content by an IOCTL. A read(2) is to drop the file's void pages."""
    with mounted(
        mountpoint, attach=False, open_flags=_KEEP, generic_flags=dio, ioctl=(0, 0), **LONG
    ) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDONLY)
        direct = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        with mmap.mmap(fd, BLOCK, prot=mmap.PROT_READ) as view, mmap.mmap(-1, BLOCK) as buffer:
            assert view[:1] == b"d"
            m.model.put("f", fill("n", BLOCK))
            fcntl.ioctl(fd, 0x7A01)
            assert os.preadv(direct, [buffer], 0) == BLOCK
            assert buffer[:1] == b"n"
            assert view[:1] == b"n"
        os.close(direct)
        os.close(fd)
