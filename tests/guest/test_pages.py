# SPDX-License-Identifier: LGPL-2.1-or-later
"""FUSE's own pages of files that are mapped: they are never of a content that is no more."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.conftest import run
from tests.guest.daemons import Call, Mount, eventually, mounted
from tests.guest.service import WRITEBACK_CACHE
from tests.guest.test_direct import BLOCK, backing, fill, make, source, whole, write
from tests.guest.test_extents_in_use import frozen, slow, waits

__all__ = ["slow", "source"]  # fixtures

LONG = {"entry_timeout": 600.0, "attr_timeout": 600.0}
_KEEP_CACHE = 1 << 1  # FOPEN_KEEP_CACHE


def sent(fd: int, position: int = 0) -> bytes:
    """Return the first byte of a block by sendfile(2), which takes FUSE's pages."""
    with tempfile.TemporaryFile() as copy:
        os.sendfile(copy.fileno(), fd, position, BLOCK)
        return os.pread(copy.fileno(), 1, 0)


def truncated(m: Mount) -> int:
    """Open a file with O_TRUNC."""
    os.close(os.open(m / "f", os.O_WRONLY | os.O_TRUNC))
    return 0


@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
def test_what_an_open_truncates_is_not_written_back(
    mountpoint: Path, lower: Path, consistency: str
) -> None:
    """The daemon lets FUSE keep pages, of which one is dirty and all are void."""
    path = backing(lower, fill("o", 2 * BLOCK))
    with mounted(mountpoint, consistency=consistency, open_flags=_KEEP_CACHE, **LONG) as m:
        make(m, "f", fill("o", 2 * BLOCK))
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        with mmap.mmap(fd, BLOCK) as view:
            view[:4] = b"dirt"
            whole(m, path, write=True)
            m.hold("open", "before")
            call = Call(truncated, m)
            m.wait_held()
            os.truncate(path, 0)
            m.release()
            call.result()
            assert Path(path).read_bytes() == b""
            assert os.stat(m / "f").st_size == 0
        os.close(fd)


def test_open_that_truncates_waits_for_no_write_back(mountpoint: Path, lower: Path) -> None:
    """In a write-back mount FUSE lets no WRITE through until such an OPEN is answered."""
    path = backing(lower, fill("o", 2 * BLOCK))
    options = {"generic_flags": WRITEBACK_CACHE, "open_flags": _KEEP_CACHE, **LONG}
    with mounted(mountpoint, **options) as m:
        make(m, "f", fill("o", 2 * BLOCK))
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        with mmap.mmap(fd, BLOCK) as view:
            view[:4] = b"dirt"
            m.hold("open", "before")
            call = Call(truncated, m)
            m.wait_held()
            whole(m, path, write=True)
            m.release()
            call.result()
            assert os.stat(m / "f").st_size == 0
        os.close(fd)


@pytest.mark.parametrize("consistency", ["ttl", "cto", "exclusive"])
@pytest.mark.parametrize("how", ["append", "mapped"])
def test_rest_of_a_page_is_of_the_content_that_is_mapped(
    mountpoint: Path, lower: Path, consistency: str, how: str
) -> None:
    """A write(2) into a page that FUSE has of an earlier content goes below as a whole page."""
    old, new = (backing(lower, letter * 100, letter.decode()) for letter in (b"a", b"b"))
    append = os.O_APPEND if how == "append" else 0
    options = {"generic_flags": WRITEBACK_CACHE, **LONG}
    with mounted(mountpoint, consistency=consistency, **options) as m:
        make(m, "f", b"d" * 100)
        m.call("map_extent", "f", old, os.O_RDWR, write=True, version=1)
        fd = os.open(m / "f", os.O_RDWR | append)
        assert sent(fd) == b"a"
        m.call("map_extent", "f", new, os.O_RDWR, write=True, version=2)
        view = None if append else mmap.mmap(fd, 100)
        os.write(fd, b"x" * 10)
        os.fsync(fd)
        assert Path(new).read_bytes() == (
            b"b" * 100 + b"x" * 10 if append else b"x" * 10 + b"b" * 90
        )
        if view is not None:
            view.close()
        os.close(fd)


def _is_old(path: str) -> bool:
    """Will the next change move the time of the file for certain?"""
    return time.time_ns() - os.stat(path).st_ctime_ns > 100_000_000


def test_pages_are_not_older_than_a_read_under_way_has_seen(
    source: Mount, mountpoint: Path, lower: Path
) -> None:
    """A read(2) that has noted a change waits for a page of its buffer."""
    path = backing(lower, fill("o", 4 * BLOCK))
    with mounted(mountpoint, path="direct", **LONG) as m:
        make(source, "source", fill("s", BLOCK))
        make(m, "f", fill("d", 4 * BLOCK))
        whole(m, path)
        fd = os.open(m / "f", os.O_RDONLY)
        view = mmap.mmap(fd, BLOCK, prot=mmap.PROT_READ)
        eventually(lambda: _is_old(path))
        assert os.pread(fd, 1, 0) == sent(fd) == view[:1] == b"o"
        with open(path, "r+b") as below:
            below.write(fill("n", 4 * BLOCK))
        source.hold("read", "before")

        def long() -> int:
            pages = mmap.mmap(
                os.open(source / "source", os.O_RDONLY), BLOCK, flags=mmap.MAP_PRIVATE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )  # fmt: skip
            return os.preadv(fd, [bytearray(b"\1" * (2 * BLOCK)), memoryview(pages)], 0)

        call = Call(long)
        source.wait_held()
        seen = [(os.pread(fd, 1, 0), sent(fd), view[:1]) for _ in range(3)]
        source.release()
        assert call.result() == 3 * BLOCK
        assert set(seen) == {(b"n", b"n", b"n")}
        view.close()
        os.close(fd)


@pytest.mark.parametrize("consistency", ["ttl", "cto"])
def test_end_of_file_that_was_seen_is_not_taken_back(
    mountpoint: Path, lower: Path, consistency: str
) -> None:
    path = backing(lower, fill("o", 2 * BLOCK))
    with mounted(mountpoint, path="direct", consistency=consistency, **LONG) as m:
        make(m, "f", fill("o", 2 * BLOCK))
        whole(m, path)
        fd = os.open(m / "f", os.O_RDONLY)
        eventually(lambda: _is_old(path))
        assert os.pread(fd, 1, BLOCK) == b"o"
        m.connection.forced_path = "cache"
        for _ in range(3):
            assert os.pread(fd, 1, BLOCK) == sent(fd, BLOCK) == b"o"
        os.truncate(path, BLOCK)
        seen = []
        for way in ("direct", "cache") * 3:
            m.connection.forced_path = way
            seen += [os.pread(fd, 1, BLOCK), sent(fd, BLOCK)]
        assert set(seen) == {b""}
        os.close(fd)


@pytest.mark.parametrize("consistency", ["ttl", "cto", "exclusive"])
def test_map_that_is_made_later_shows_what_is_mapped(
    mountpoint: Path, lower: Path, consistency: str
) -> None:
    """By a file that was opened before; what is stored through it goes below as a whole page."""
    old, new = (backing(lower, letter * 100, letter.decode()) for letter in (b"a", b"b"))
    with mounted(mountpoint, consistency=consistency, **LONG) as m:
        make(m, "f", b"d" * 100)
        m.call("map_extent", "f", old, os.O_RDWR, write=True, version=1)
        fd = os.open(m / "f", os.O_RDWR)
        assert sent(fd) == b"a"
        m.call("map_extent", "f", new, os.O_RDWR, write=True, version=2)
        with mmap.mmap(fd, 100) as view:
            assert view[50:51] == b"b"
            view[:2] = b"xx"
            view.flush()
        os.close(fd)
        assert Path(new).read_bytes() == b"xx" + b"b" * 98


def test_read_of_what_may_change_unseen_drops_no_other_pages(
    tmp_path: Path, mountpoint: Path, lower: Path
) -> None:
    """Of a backing file on tmpfs it is never known. Bytes that were read are not shown older."""
    pages = 256
    below = tmp_path / "tmpfs"
    below.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", below)
    path = backing(below, fill("o", pages * BLOCK))
    with mounted(mountpoint, path="direct", **LONG) as m:
        make(m, "f", fill("d", pages * BLOCK))
        whole(m, path)
        fd, other = os.open(m / "f", os.O_RDONLY), os.open(path, os.O_RDWR)
        with mmap.mmap(fd, pages * BLOCK, prot=mmap.PROT_READ) as view:
            view.madvise(mmap.MADV_RANDOM)

            def walk() -> set[bytes]:
                return {view[at : at + 1] for at in range(0, pages * BLOCK, BLOCK)}

            assert walk() == {b"o"}
            assert os.pread(fd, 1, 7 * BLOCK) == b"o"
            before = m.count("read", "hits")
            assert walk() == {b"o"}
            assert m.count("read", "hits") - before <= 1
            with mmap.mmap(other, pages * BLOCK) as stores:
                stores[9 * BLOCK : 9 * BLOCK + 1] = b"n"
            assert os.pread(fd, 1, 9 * BLOCK) == b"n"
            assert view[9 * BLOCK : 9 * BLOCK + 1] == b"n"
        os.close(fd)
        os.close(other)


def test_write_does_not_wait_for_who_writes_below_from_a_map_of_it(
    source: Mount, mountpoint: Path, lower: Path
) -> None:
    """He has the backing file's lock, and faults in a page of the file above."""
    path = backing(lower, fill("o", 4 * BLOCK))
    with mounted(mountpoint, **LONG) as m:
        make(source, "source", fill("s", BLOCK))
        make(m, "f", fill("d", 4 * BLOCK))
        whole(m, path, write=True)
        source.hold("read", "before")

        def below() -> int:
            pages = [
                mmap.mmap(os.open(where, os.O_RDONLY), BLOCK, prot=mmap.PROT_READ)
                for where in (source / "source", m / "f")
            ]
            return os.pwritev(os.open(path, os.O_WRONLY), [memoryview(p) for p in pages], BLOCK)

        first = Call(below)
        source.wait_held()
        second = Call(write, m / "f", fill("w", BLOCK), 3 * BLOCK)
        waits(second)
        source.release()
        assert first.result() == 2 * BLOCK
        assert second.result() == BLOCK
        old = fill("o", 4 * BLOCK)
        assert Path(path).read_bytes() == old[:BLOCK] + fill("s", BLOCK) + old[:BLOCK] + fill(
            "w", BLOCK
        )


class Mapped:
    """A process that maps a file, stores to it, and shows it when it is told to.

    Not the test's own: to start another program would close the file there, which writes back.
    """

    def __init__(self, m: Mount, position: int) -> None:
        (self._ready, ready), (go, self._go) = os.pipe(), os.pipe()

        def run() -> tuple[bytes, bytes]:
            os.close(self._go)
            with mmap.mmap(os.open(m / "f", os.O_RDWR), 0) as view:
                before = view[:]
                view[position : position + 2] = b"ss"
                os.write(ready, b"r")
                os.read(go, 1)
                after = view[:]
                view.flush()
            return before, after

        self._call = Call(run)
        os.close(ready)
        os.close(go)
        assert os.read(self._ready, 1) == b"r"

    def shows(self) -> tuple[bytes, bytes]:
        """Return what it has seen before it stored, and now; what it stored goes below."""
        os.write(self._go, b"g")
        shown = self._call.result()
        os.close(self._ready)
        os.close(self._go)
        return shown


def test_map_that_is_made_while_a_write_goes_below_loses_nothing_of_it(
    mountpoint: Path, lower: Path, slow: Path
) -> None:
    """A page that came meanwhile is stored to, and written back over what was written."""
    path = backing(slow, b"o" * BLOCK)
    with mounted(mountpoint, **LONG) as m:
        make(m, "f", b"d" * BLOCK)
        whole(m, path, write=True)
        with frozen(slow):
            writer = Call(write, m / "f", b"w" * 100)
            waits(writer)
            mapped = Mapped(m, 2000)
        assert writer.result() == 100
        expected = b"w" * 100 + b"o" * 1900 + b"ss" + b"o" * (BLOCK - 2002)
        assert mapped.shows() == (b"o" * BLOCK, expected)
        assert Path(path).read_bytes() == expected


def test_map_that_is_made_while_a_write_appends_below_appends_it_once(
    mountpoint: Path, lower: Path, slow: Path
) -> None:
    path = backing(slow, b"o" * 100)
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        make(m, "f", b"d" * 100)
        whole(m, path, write=True)
        with frozen(slow):
            writer = Call(write, m / "f", b"w" * 10, 0, os.O_APPEND)
            waits(writer)
            mapped = Mapped(m, 50)
        assert writer.result() == 10
        mapped.shows()
        assert Path(path).read_bytes() == b"o" * 50 + b"ss" + b"o" * 48 + b"w" * 10


@pytest.fixture
def xfs(tmp_path: Path, lower: Path) -> Iterator[Path]:
    """A lower file system that takes a file's lock to read it."""
    image, root = lower / "image", tmp_path / "xfs"
    with image.open("wb") as file:
        file.truncate(320 << 20)
    root.mkdir()
    run("modprobe", "xfs", check=False)  # it may be built in
    run("mkfs.xfs", "-q", image)
    run("mount", "-o", "loop", image, root)
    yield root
    run("umount", root)


def test_page_that_is_faulted_in_by_who_has_the_lock_below_is_the_daemons(
    mountpoint: Path, xfs: Path
) -> None:
    """In the kernel he would wait for himself, and nobody could kill him."""
    path = backing(xfs, fill("o", 4 * BLOCK))
    with mounted(mountpoint, **LONG) as m:
        make(m, "f", fill("d", 4 * BLOCK))
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDONLY)
        with m.answered("read"):
            assert sent(fd, 3 * BLOCK) == b"o"

        def below() -> int:
            with mmap.mmap(fd, BLOCK, prot=mmap.PROT_READ) as view:
                return os.pwrite(os.open(path, os.O_WRONLY), view, 2 * BLOCK)

        with m.passed("read", "declined"):
            assert Call(below).result() == BLOCK
        os.close(fd)
        expected = bytearray(fill("o", 4 * BLOCK))
        expected[2 * BLOCK : 3 * BLOCK] = fill("d", BLOCK)
        assert Path(path).read_bytes() == expected
