# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test FUSE's own pages of mapped files: they never show bytes that the file no longer has."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import select
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.busy_file import busy, wait_until_below
from tests.guest.support.daemons import Call, Mount, eventually, mounted, running
from tests.guest.support.failing_disk import failing_disk
from tests.guest.support.file_data import BLOCK, fill, write
from tests.guest.support.file_pages import (
    LONG,
    is_old,
    libc,
    random_view,
    sent,
    store_by_address,
    written_back,
)
from tests.guest.support.scripted_daemon import ScriptedDaemon
from tests.guest.support.shell import load_file_system, run
from tests.guest.support.wire import (
    FOPEN_DIRECT_IO,
    FOPEN_KEEP_CACHE,
    FOPEN_NOFLUSH,
    FUSE_WRITEBACK_CACHE,
)

_SPLICE_F_MOVE = 1
_HEADER = 16  # bytes of struct fuse_out_header


def truncated(m: Mount) -> int:
    """Open a file with O_TRUNC."""
    os.close(os.open(m / "f", os.O_WRONLY | os.O_TRUNC))
    return 0


@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
def test_dirty_pages_truncated_by_an_open_are_not_written_back(
    mountpoint: Path, lower: Path, consistency: str
) -> None:
    """The daemon lets FUSE keep the pages. One of them is dirty, and all are void."""
    path = backing(lower, fill("o", 2 * BLOCK))
    with mounted(mountpoint, consistency=consistency, open_flags=FOPEN_KEEP_CACHE, **LONG) as m:
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


def test_truncating_open_does_not_wait_for_write_back(mountpoint: Path, lower: Path) -> None:
    """In a write-back mount, FUSE holds all WRITEs back until such an OPEN is answered."""
    path = backing(lower, fill("o", 2 * BLOCK))
    options = {"generic_flags": FUSE_WRITEBACK_CACHE, "open_flags": FOPEN_KEEP_CACHE, **LONG}
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
def test_partial_write_completes_its_page_from_the_mapped_file(
    mountpoint: Path, lower: Path, consistency: str, how: str
) -> None:
    """A write(2) into a page with earlier contents goes to the backing file as a whole page."""
    old, new = (backing(lower, letter * 100, letter.decode()) for letter in (b"a", b"b"))
    append = os.O_APPEND if how == "append" else 0
    options = {"generic_flags": FUSE_WRITEBACK_CACHE, **LONG}
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


def test_partial_write_completes_its_page_from_a_file_mapped_during_the_write(
    mountpoint: Path, lower: Path
) -> None:
    """The write has begun and asks for the file's end. Then the daemon maps another file."""
    old, new = (backing(lower, letter * 100, letter.decode()) for letter in (b"a", b"b"))
    with mounted(mountpoint, generic_flags=FUSE_WRITEBACK_CACHE, entry_timeout=600.0) as m:
        make(m, "f", b"d" * 100)
        m.call("map_extent", "f", old, os.O_RDWR, write=True, version=1)
        fd = os.open(m / "f", os.O_RDWR | os.O_APPEND)
        assert sent(fd) == b"a"
        m.hold("getattr", "before")
        writer = Call(_appended, fd, b"x" * 10)
        m.wait_held()
        m.call("map_extent", "f", new, os.O_RDWR, write=True, version=2)
        m.release()
        assert writer.result() == 10
        os.close(fd)
        assert Path(new).read_bytes() == b"b" * 100 + b"x" * 10


def test_store_to_a_void_page_writes_no_old_bytes_to_the_backing_file(
    mountpoint: Path, lower: Path
) -> None:
    """The page is clean and void. A store goes to the backing file with the rest of its page."""
    paths = [backing(lower, letter * 2 * BLOCK, letter.decode()) for letter in (b"a", b"b", b"c")]
    with mounted(mountpoint, **LONG) as m:
        make(m, "f", b"d" * 2 * BLOCK)
        m.call("map_extent", "f", paths[0], os.O_RDWR, write=True, version=1)
        fd = os.open(m / "f", os.O_RDWR)
        with mmap.mmap(fd, 2 * BLOCK) as view:
            for version, path in enumerate(paths[1:], 2):
                assert view[2] == view[BLOCK + 2] == b"abc"[version - 2]
                m.call("map_extent", "f", path, os.O_RDWR, write=True, version=version)
                # The first page stays dirty while the second one is stored to.
                view[:2] = b"xx"
                view[BLOCK : BLOCK + 2] = b"yy"
                view.flush()
                letter = b"abc"[version - 1 : version]
                rest = letter * (BLOCK - 2)
                assert Path(path).read_bytes() == b"xx" + rest + b"yy" + rest
        os.close(fd)


def test_store_to_a_page_being_read_writes_no_old_bytes_to_the_backing_file(
    mountpoint: Path, lower: Path
) -> None:
    """The file is mapped while the daemon answers a READ, so mmap(2) cannot drop that page."""
    new = backing(lower, fill("n", 2 * BLOCK))
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("d", 2 * BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        m.hold("read", "after")
        reader = Call(sent, fd)
        m.wait_held()
        whole(m, new, write=True)

        def store() -> bytes:
            with mmap.mmap(fd, BLOCK) as view:
                view[:2] = b"xx"
                view.flush()
                return view[:]

        storer = Call(store)
        eventually(lambda: "folio_wait_bit" in str(storer.within()), "the store waits for the page")
        m.release()
        # The reader may see the old bytes, the new bytes, or the store.
        assert reader.result() in (b"d", b"n", b"x")
        expected = b"xx" + fill("n", BLOCK)[2:]
        assert storer.result() == expected
        os.close(fd)
        assert Path(new).read_bytes() == expected + fill("n", 2 * BLOCK)[BLOCK:]


def _store(view: mmap.mmap, position: int) -> None:
    view[position : position + 2] = b"ss"


def _store_first(fd: int) -> None:
    """Store to the first page of a file by a map."""
    with random_view(fd, 1) as view:
        _store(view, 0)


def test_stores_to_two_void_pages_read_each_page_once(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("o", _MANY * BLOCK))
    with mounted(mountpoint, path="daemon", **LONG) as m:
        make(m, "f", fill("d", _MANY * BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        with random_view(fd, _MANY) as view:
            places = [0, _MANY // 2 * BLOCK]
            assert [view[at] for at in places] == [ord("d")] * 2
            whole(m, path, write=True)
            m.call("reads")
            m.hold("read", "before", times=2)
            stores = [Call(_store, view, at) for at in places]
            m.wait_held(2)
            m.release()
            for call in stores:
                call.result()
            assert sorted(m.call("reads")) == [(at, BLOCK) for at in places]
        os.close(fd)
        expected = bytearray(fill("d", _MANY * BLOCK))
        for at in places:
            expected[at : at + 2] = b"ss"
        assert bytes(m.call("inode", "f").data) == expected


_CHANGES = 20  # A store that gives up after some number of tries fails this test.


def test_store_reads_its_page_again_after_a_change(mountpoint: Path, lower: Path) -> None:
    """The contents change each time that a READ of the page has been answered."""
    path = backing(lower, fill("o", BLOCK))
    with mounted(mountpoint, path="daemon", **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        with random_view(fd, 1) as view:
            assert view[:1] == b"d"
            whole(m, path, write=True)
            m.hold("read", "after")
            store = Call(_store, view, 0)
            for _ in range(_CHANGES):
                m.wait_held()
                whole(m, path, write=True)
                m.call("release_and_hold", "read", "after")
            m.wait_held()
            whole(m, path, write=True)
            m.connection.forced_path = "auto"
            m.release()
            store.result()
            view.flush()
        os.close(fd)
        assert Path(path).read_bytes() == b"ss" + fill("o", BLOCK)[2:]


def test_store_after_killed_stores_reads_its_void_page_again(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("o", BLOCK))
    with mounted(mountpoint, path="daemon", open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        # With read-ahead, a store whose READ is at the daemon can be killed.
        with mmap.mmap(fd, BLOCK) as view:
            assert view[:1] == b"d"
            for _ in range(_CHANGES):
                whole(m, path, write=True)
                m.hold("read", "before")
                store = Call(_store, view, 0)
                m.wait_held()
                store.kill()
                m.release()
                assert view[:1] == b"d"
            m.connection.forced_path = "auto"
            whole(m, path, write=True)
            Call(_store, view, 0).result()
            view.flush()
        os.close(fd)
        assert Path(path).read_bytes() == b"ss" + fill("o", BLOCK)[2:]


@contextlib.contextmanager
def _referenced(fd: int, how: str) -> Iterator[None]:
    """Hold more references to a file's first page than an unpinned page usually has.

    This takes no right except to read the file.
    """
    number = 1100  # GUP_PIN_COUNTING_BIAS is 1024.
    with contextlib.ExitStack() as stack:
        if how == "maps":
            for _ in range(number):
                view = stack.enter_context(mmap.mmap(fd, BLOCK, prot=mmap.PROT_READ))
                assert view[0]
        else:
            first, first_in = _pipe(stack)
            assert os.splice(fd, first_in, 1, offset_src=0) == 1
            for _ in range(0, number, 256):
                end = _pipe(stack)[1]
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)
                for _ in range(256):
                    assert libc.tee(first, end, 1, 0) == 1
        yield


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends


@pytest.mark.parametrize("how", ["maps", "pipes"])
@pytest.mark.parametrize("writes", ["by a map", "by write(2)"])
def test_void_page_with_many_references_is_read_again(
    mountpoint: Path, lower: Path, how: str, writes: str
) -> None:
    """The page must not count as pinned by direct I/O."""
    old, new = (backing(lower, fill(letter, BLOCK), letter) for letter in ("a", "b"))
    flags = FUSE_WRITEBACK_CACHE if writes == "by write(2)" else 0
    with mounted(mountpoint, generic_flags=flags, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        m.call("map_extent", "f", old, os.O_RDWR, write=True, version=1)
        fd, reader = os.open(m / "f", os.O_RDWR), os.open(m / "f", os.O_RDONLY)
        assert sent(reader) == b"a"
        with _referenced(reader, how):
            m.call("map_extent", "f", new, os.O_RDWR, write=True, version=2)
            if writes == "by a map":
                with random_view(fd, 1) as view:
                    view[:2] = b"ss"
                    view.flush()
            else:
                assert os.pwrite(fd, b"ss", 0) == 2
                os.fsync(fd)
            assert [os.pread(reader, 1, 0), sent(reader)] == [b"s", b"s"]
        os.close(fd)
        os.close(reader)
        assert Path(new).read_bytes() == b"ss" + fill("b", BLOCK)[2:]


def test_write_is_kept_while_direct_io_reads_the_page(
    tmp_path: Path, mountpoint: Path, lower: Path, slow: Path
) -> None:
    """Direct I/O writes from a map of the file while a write(2) goes to the backing file."""
    path = backing(slow, fill("o", BLOCK))
    with failing_disk(tmp_path) as disk, mounted(mountpoint, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        (disk.root / "file").write_bytes(fill("z", BLOCK))
        os.sync()
        make(m, "f", fill("o", BLOCK))
        whole(m, path, write=True)
        writer_fd, reader = os.open(m / "f", os.O_WRONLY), os.open(m / "f", os.O_RDONLY)
        fd = os.open(m / "f", os.O_RDWR)
        other = os.open(disk.root / "file", os.O_WRONLY | os.O_DIRECT)
        with mmap.mmap(reader, BLOCK, prot=mmap.PROT_READ) as shown:
            try:
                with busy(path):
                    writer = Call(os.pwrite, writer_fd, b"w" * 100, 0)
                    wait_until_below(writer)
                    assert shown[0:1] == b"o"
                    disk.hold()
                    pinner = Call(os.pwrite, other, shown, 0)
                    eventually(lambda: "__iomap_dio_rw" in pinner.within(), "the disk holds it")
                assert writer.result() == 100
                assert [os.pread(reader, 1, 0), sent(reader)] == [b"w", b"w"]
                with mmap.mmap(fd, BLOCK) as view:
                    view[2000:2002] = b"ss"
                    view.flush()
            finally:
                disk.resume()
            assert pinner.result() == BLOCK
        for number in (fd, reader, writer_fd, other):
            os.close(number)
        expected = b"w" * 100 + fill("o", BLOCK)[100:]
        assert Path(path).read_bytes() == expected[:2000] + b"ss" + expected[2002:]


def test_bytes_stored_beyond_eof_are_zero_after_a_write_in_write_back_mode(
    mountpoint: Path, lower: Path
) -> None:
    """The file is mapped for writing, so FUSE's own code handles the write."""
    path = backing(lower, b"o" * 100)
    with mounted(mountpoint, generic_flags=FUSE_WRITEBACK_CACHE, **LONG) as m:
        make(m, "f", b"o" * 100)
        whole(m, path, write=True)
        fd, other = os.open(m / "f", os.O_RDWR), os.open(m / "f", os.O_RDWR)
        with mmap.mmap(other, 100) as view:
            store_by_address(fd, {200: b"JUNK"})
            assert os.pwrite(fd, b"x" * 10, 2 * BLOCK) == 10
            assert os.pread(fd, 4, 200) == bytes(4)
            view[:1] = b"P"
            view.flush()
        os.fsync(fd)
        os.close(fd)
        os.close(other)
        expected = b"P" + b"o" * 99 + bytes(2 * BLOCK - 100) + b"x" * 10
        assert Path(path).read_bytes() == expected


def _reads_from_disk(call: Call[int]) -> bool:
    """Return whether a direct read sleeps, with the pages of its buffer pinned."""
    names = call.within()
    return any("iomap_dio" in name for name in names) and not any("fault" in n for n in names)


def test_bytes_read_into_a_map_by_direct_io_are_kept(
    tmp_path: Path, mountpoint: Path, lower: Path
) -> None:
    """The page is clean and void while a disk holds the read that fills the page."""
    path = backing(lower, fill("o", BLOCK))
    with failing_disk(tmp_path) as disk, mounted(mountpoint, **LONG) as m:
        brought = fill("b", BLOCK)
        (disk.root / "file").write_bytes(brought)
        os.sync()
        make(m, "f", fill("d", BLOCK))
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        other = os.open(disk.root / "file", os.O_RDONLY | os.O_DIRECT)
        with mmap.mmap(fd, BLOCK) as view:
            disk.hold()
            try:
                reader = Call(os.preadv, other, [memoryview(view)], 0)
                eventually(lambda: _reads_from_disk(reader), "the disk holds the read")
                os.fsync(fd)
                whole(m, path, write=True)
                assert os.pread(fd, 1, 0) == b"o"
            finally:
                disk.resume()
            assert reader.result() == BLOCK
            assert view[:] == brought
            view.flush()
        os.close(fd)
        os.close(other)
        assert Path(path).read_bytes() == brought


def test_write_waits_for_write_back_of_old_content_and_reads_the_page_again(
    mountpoint: Path, lower: Path
) -> None:
    """The daemon has the WRITE of the page while it maps a backing file."""
    path = backing(lower, fill("n", BLOCK))
    options = {"generic_flags": FUSE_WRITEBACK_CACHE, "open_flags": FOPEN_NOFLUSH, **LONG}
    with mounted(mountpoint, **options) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        end, go = os.pipe()
        os.pwrite(fd, b"w", 0)
        m.hold("write", "before")
        syncer = Call(written_back, fd, end)
        m.wait_held()
        whole(m, path, write=True)
        writer = Call(os.pwrite, fd, b"xx", 100)
        begins = {"fuse_write_begin", "iomap_file_buffered_write"}
        eventually(lambda: begins & set(writer.within()), "the writer has begun")
        assert not writer.done()
        m.release()
        assert writer.result() == 2
        os.write(go, b"g")
        assert syncer.result() == 0
        os.fsync(fd)
        os.close(fd)
        os.close(end)
        os.close(go)
        expected = fill("n", BLOCK)
        assert Path(path).read_bytes() == expected[:100] + b"xx" + expected[102:]


def test_write_beyond_eof_keeps_bytes_that_a_map_has_shown(mountpoint: Path, lower: Path) -> None:
    """The backing file is longer than the size that FUSE knows."""
    path = backing(lower, b"o" * 200)
    with mounted(mountpoint, **LONG) as m:
        make(m, "f", b"d" * 100)
        whole(m, path, write=True)
        reader, writer = os.open(m / "f", os.O_RDONLY), os.open(m / "f", os.O_WRONLY)
        address = libc.mmap(None, BLOCK, mmap.PROT_READ, mmap.MAP_SHARED, reader, 0)
        assert ctypes.string_at(address + 150, 1) == b"o"
        with m.answered("write"):
            os.pwrite(writer, b"x", 2 * BLOCK)
        assert ctypes.string_at(address + 150, 1) == b"o"
        assert libc.munmap(address, BLOCK) == 0
        os.close(reader)
        os.close(writer)
        assert Path(path).read_bytes() == b"o" * 200 + bytes(2 * BLOCK - 200) + b"x"


def test_bytes_stored_beyond_eof_while_a_write_waits_are_not_written(
    source: Mount, mountpoint: Path, lower: Path
) -> None:
    """The write waits for its own buffer, and makes the file longer."""
    path = backing(lower, b"o" * 100)
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, consistency="exclusive", **LONG) as m:
        make(source, "source", fill("s", BLOCK))
        make(m, "f", b"o" * 100)
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        held = os.open(source / "source", os.O_RDONLY)
        with mmap.mmap(held, BLOCK, prot=mmap.PROT_READ) as buffer:
            source.hold("read", "before")
            writer = Call(os.pwritev, fd, [memoryview(buffer)], 2 * BLOCK)
            source.wait_held()
            store_by_address(fd, {200: b"JUNK"}, sync=False)
            source.release()
            assert writer.result() == BLOCK
        assert os.pread(fd, 4, 200) == bytes(4)
        with tempfile.TemporaryFile() as copy:
            os.sendfile(copy.fileno(), fd, 0, BLOCK)
            assert os.pread(copy.fileno(), 4, 200) == bytes(4)
        store_by_address(fd, {0: b"P"})
        os.close(fd)
        os.close(held)
        expected = b"P" + b"o" * 99 + bytes(2 * BLOCK - 100) + fill("s", BLOCK)
        assert Path(path).read_bytes() == expected


@pytest.mark.parametrize("then", ["shown", "by a map", "by write(2)"])
def test_void_page_stored_to_before_is_read_again_despite_references(
    mountpoint: Path, lower: Path, then: str
) -> None:
    """No program does direct I/O. A reader keeps 1100 references in pipes (tee(2))."""
    old, new = (backing(lower, fill(letter, BLOCK), letter) for letter in ("a", "b"))
    flags = FUSE_WRITEBACK_CACHE if then == "by write(2)" else 0
    with mounted(mountpoint, generic_flags=flags, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        m.call("map_extent", "f", old, os.O_RDWR, write=True, version=1)
        fd, reader = os.open(m / "f", os.O_RDWR), os.open(m / "f", os.O_RDONLY)
        store_by_address(fd, {0: b"a"})  # made writable once, and clean again
        assert sent(reader) == b"a"
        call: Call[object] | None = None
        try:
            with _referenced(reader, "pipes"):
                m.call("map_extent", "f", new, os.O_RDWR, write=True, version=2)
                if then == "shown":
                    assert sent(reader) == b"b"  # 'a': of a content that is no more
                elif then == "by a map":
                    with random_view(fd, 1) as view:
                        call = Call(_store, view, 0)
                        call.result()  # hangs for as long as the reader keeps its pipes
                        view.flush()
                else:
                    call = Call(os.pwrite, fd, b"ss", 0)
                    assert call.result() == 2  # hangs under the inode's lock
                    os.fsync(fd)
        finally:
            if call:
                call.kill()
            os.close(fd)
            os.close(reader)
        if then != "shown":
            assert Path(new).read_bytes() == b"ss" + fill("b", BLOCK)[2:]


def test_write_beyond_eof_keeps_bytes_that_a_writable_map_has_shown(
    mountpoint: Path, lower: Path
) -> None:
    """As test_write_beyond_eof_keeps_bytes_that_a_map_has_shown, with a writable map."""
    path = backing(lower, b"o" * 200)
    with mounted(mountpoint, **LONG) as m:
        make(m, "f", b"d" * 100)
        whole(m, path, write=True)
        fd, writer = os.open(m / "f", os.O_RDWR), os.open(m / "f", os.O_WRONLY)
        shared, both = mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
        address = libc.mmap(None, BLOCK, both, shared, fd, 0)
        assert ctypes.string_at(address + 150, 1) == b"o"
        os.pwrite(writer, b"x", 2 * BLOCK)
        assert ctypes.string_at(address + 150, 1) == b"o"  # zero, in a page that is not void
        ctypes.memmove(address, b"P", 1)
        os.fsync(fd)
        assert libc.munmap(address, BLOCK) == 0
        os.close(fd)
        os.close(writer)
        # The page is written back as a whole: the other program's bytes 100 to 199 are zeros.
        expected = b"P" + b"o" * 199 + bytes(2 * BLOCK - 200) + b"x"
        assert Path(path).read_bytes() == expected


@pytest.mark.parametrize("flags", [0, FUSE_WRITEBACK_CACHE])
def test_bytes_stored_beyond_eof_in_a_dirty_page_are_not_written(
    mountpoint: Path, lower: Path, flags: int
) -> None:
    """The program does not call msync(2) or fsync(2) between the store and the write(2)."""
    path = backing(lower, b"o" * 100)
    with mounted(mountpoint, generic_flags=flags, consistency="exclusive", **LONG) as m:
        make(m, "f", b"o" * 100)
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        store_by_address(fd, {200: b"JUNK"}, sync=False)
        assert os.pwrite(fd, b"x", 2 * BLOCK) == 1
        with tempfile.TemporaryFile() as copy:
            os.sendfile(copy.fileno(), fd, 0, BLOCK)
            assert os.pread(copy.fileno(), 4, 200) == bytes(4)
        os.fsync(fd)
        os.close(fd)
        assert Path(path).read_bytes() == b"o" * 100 + bytes(2 * BLOCK - 100) + b"x"


def test_direct_io_into_one_page_twice_ends_if_the_page_becomes_void(
    source: Mount, mountpoint: Path, lower: Path
) -> None:
    """The second of three buffers is a page of another mount, for which its daemon is asked."""
    path = backing(lower, fill("o", BLOCK))
    disk = backing(lower, fill("1", BLOCK) + fill("2", BLOCK) + fill("3", BLOCK), "disk")
    os.sync()
    with mounted(mountpoint, **LONG) as m:
        make(source, "source", fill("s", BLOCK))
        make(m, "f", fill("d", BLOCK))
        whole(m, path, write=True)
        fd, held = os.open(m / "f", os.O_RDWR), os.open(source / "source", os.O_RDWR)
        other = os.open(disk, os.O_RDONLY | os.O_DIRECT)
        with mmap.mmap(fd, BLOCK) as view, mmap.mmap(held, BLOCK) as between:
            source.hold("read", "before")
            buffers = [memoryview(view), memoryview(between), memoryview(view)]
            reader = Call(os.preadv, other, buffers, 0)
            try:
                source.wait_held()  # the first page is pinned, and in a bio that is not sent yet
                os.fsync(fd)  # the page is clean and write-protected
                whole(m, path, write=True)  # and void
                source.release()
                assert reader.result() == 3 * BLOCK  # hangs: it waits for its own pin
            finally:
                reader.kill()
            for each in buffers:
                each.release()
            assert view[:] == fill("3", BLOCK)
            view.flush()
        for number in (fd, held, other):
            os.close(number)
        assert Path(path).read_bytes() == fill("3", BLOCK)


def test_write_and_direct_read_into_a_page_whose_map_is_gone_are_both_kept(
    source: Mount, mountpoint: Path, lower: Path
) -> None:
    """The page is clean, and pinned until another mount's daemon has answered the direct read."""
    size, at = 512, 2048
    path = backing(lower, fill("o", BLOCK))
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, **LONG) as m, source.threads(1) as pool:
        make(source, "source", fill("b", BLOCK))
        make(m, "f", fill("o", BLOCK))
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        other = os.open(source / "source", os.O_RDONLY | os.O_DIRECT)
        both = mmap.PROT_READ | mmap.PROT_WRITE
        address = libc.mmap(None, BLOCK, both, mmap.MAP_SHARED, fd, 0)
        buffer = (ctypes.c_char * size).from_address(address + at)
        source.hold("read", "before")
        reading = pool.submit(os.preadv, other, [buffer], 0)
        source.wait_held()
        assert libc.munmap(address, BLOCK) == 0
        os.fsync(fd)
        with m.answered("write"):
            assert os.pwrite(fd, b"w" * 100, 0) == 100
        source.release()
        assert reading.result() == size
        os.fsync(fd)
        os.close(fd)
        os.close(other)
        expected = bytearray(fill("o", BLOCK))
        expected[:100] = b"w" * 100
        expected[at : at + size] = fill("b", BLOCK)[:size]
        assert Path(path).read_bytes() == expected


def test_page_that_splice_moves_into_the_page_cache_is_dropped_after_a_change(
    mountpoint: Path, lower: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon answers a READ from before the change by splice(2) with SPLICE_F_MOVE."""
    plain = ScriptedDaemon._send

    def send(daemon: ScriptedDaemon, answer: bytes) -> None:
        if len(answer) != _HEADER + BLOCK:
            plain(daemon, answer)
            return
        out, into = os.pipe2(os.O_DIRECT)  # each write(2) has a page of its own
        os.write(into, answer[:_HEADER])
        os.write(into, answer[_HEADER:])
        done = libc.splice(out, None, daemon._fd, None, len(answer), _SPLICE_F_MOVE)
        assert done == len(answer), os.strerror(ctypes.get_errno())
        os.close(out)
        os.close(into)

    monkeypatch.setattr(ScriptedDaemon, "_send", send)
    new = backing(lower, fill("n", BLOCK))
    with mounted(mountpoint, path="daemon", open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDONLY)
        m.hold("read", "after")
        first = Call(sent, fd)
        m.wait_held()
        whole(m, new)
        m.connection.forced_path = "auto"
        second = Call(sent, fd)
        eventually(lambda: "folio_wait_bit" in str(second.within()), "it waits to drop the page")
        m.release()
        assert first.result() in (b"d", b"n")
        assert [second.result(), sent(fd)] == [b"n", b"n"]  # 'd' until the next change
        os.close(fd)


@pytest.mark.parametrize("path", ["daemon", "auto"])
@pytest.mark.parametrize("how", ["further", "append"])
def test_bytes_stored_beyond_eof_are_not_written(
    mountpoint: Path, lower: Path, path: str, how: str
) -> None:
    """A map shows the whole last page. Then a write(2) makes the file longer."""
    below = backing(lower, b"o" * 100)
    with mounted(mountpoint, consistency="exclusive", path=path, **LONG) as m:
        make(m, "f", b"o" * 100)
        whole(m, below, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        store_by_address(fd, {0: b"O", 200: b"JUNK"})
        if how == "append":
            appending = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
            os.write(appending, b"x" * 50)
            os.close(appending)
        os.pwrite(fd, b"x", 2 * BLOCK)
        with tempfile.TemporaryFile() as copy:
            os.sendfile(copy.fileno(), fd, 0, BLOCK)
            assert os.pread(copy.fileno(), 4, 200) == bytes(4)
        store_by_address(fd, {0: b"P"})
        os.close(fd)
        now = Path(below).read_bytes() if path == "auto" else bytes(m.call("inode", "f").data)
        assert now[0:1] == b"P"
        assert now[200:204] == bytes(4)
        if path == "auto":
            assert m.count("write", "hits")


def _appended(fd: int, data: bytes) -> int:
    written = os.write(fd, data)
    os.fsync(fd)
    return written


def test_pages_are_not_older_than_bytes_seen_by_a_read_in_progress(
    source: Mount, mountpoint: Path, lower: Path
) -> None:
    """A read(2) that has noticed a change waits for a page of its buffer."""
    path = backing(lower, fill("o", 4 * BLOCK))
    with mounted(mountpoint, path="direct", **LONG) as m:
        make(source, "source", fill("s", BLOCK))
        make(m, "f", fill("d", 4 * BLOCK))
        whole(m, path)
        fd = os.open(m / "f", os.O_RDONLY)
        view = mmap.mmap(fd, BLOCK, prot=mmap.PROT_READ)
        eventually(lambda: is_old(path))
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
def test_truncated_end_of_file_stays_on_every_path(
    mountpoint: Path, lower: Path, consistency: str
) -> None:
    path = backing(lower, fill("o", 2 * BLOCK))
    with mounted(mountpoint, path="direct", consistency=consistency, **LONG) as m:
        make(m, "f", fill("o", 2 * BLOCK))
        whole(m, path)
        fd = os.open(m / "f", os.O_RDONLY)
        eventually(lambda: is_old(path))
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
def test_new_map_of_an_open_file_shows_the_mapped_file(
    mountpoint: Path, lower: Path, consistency: str
) -> None:
    """The map is of a file that was opened before. A store goes below with the rest of its page."""
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


def test_read_of_a_file_on_tmpfs_drops_no_other_pages(
    tmp_path: Path, mountpoint: Path, lower: Path
) -> None:
    """On tmpfs, changes are never noticed. Still, bytes that were read are not shown older."""
    pages = 256
    below = tmp_path / "tmpfs"
    below.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", below)
    path = backing(below, fill("o", pages * BLOCK))
    other = os.open(path, os.O_RDWR)
    with (
        mmap.mmap(other, pages * BLOCK) as stores,
        mounted(mountpoint, path="direct", **LONG) as m,
    ):
        # The first store to a page changes the file's times, and the second one does not.
        stores[9 * BLOCK : 9 * BLOCK + 1] = b"o"
        changed = os.fstat(other).st_ctime_ns
        make(m, "f", fill("d", pages * BLOCK))
        whole(m, path)
        fd = os.open(m / "f", os.O_RDONLY)
        with mmap.mmap(fd, pages * BLOCK, prot=mmap.PROT_READ) as view:
            view.madvise(mmap.MADV_RANDOM)

            def walk() -> set[bytes]:
                return {view[at : at + 1] for at in range(0, pages * BLOCK, BLOCK)}

            assert walk() == {b"o"}
            assert os.pread(fd, 1, 7 * BLOCK) == b"o"
            before = m.count("read", "hits")
            assert walk() == {b"o"}
            assert m.count("read", "hits") - before <= 1
            stores[9 * BLOCK : 9 * BLOCK + 1] = b"n"
            assert os.fstat(other).st_ctime_ns == changed
            assert os.pread(fd, 1, 9 * BLOCK) == b"n"
            assert view[9 * BLOCK : 9 * BLOCK + 1] == b"n"
        os.close(fd)
        os.close(other)


@pytest.mark.parametrize(
    ("how", "by"), [("open", "direct"), ("O_DIRECT", "direct"), ("O_DIRECT", "cache")]
)
def test_pages_are_not_older_than_bytes_read_by_direct_io(
    tmp_path: Path, mountpoint: Path, lower: Path, how: str, by: str
) -> None:
    """FUSE's own requests read a backing file that changes unseen."""
    below = tmp_path / "tmpfs"
    below.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", below)
    path = backing(below, fill("o", 4 * BLOCK))
    other = os.open(path, os.O_RDWR)
    with mmap.mmap(other, 4 * BLOCK) as stores, mounted(mountpoint, path=by, **LONG) as m:
        stores[0:1] = b"o"
        make(m, "f", fill("d", 4 * BLOCK))
        whole(m, path, write=True)
        if how == "open":
            m.call("set_open_flags", FOPEN_DIRECT_IO)
        past = os.open(m / "f", os.O_RDONLY | (os.O_DIRECT if how == "O_DIRECT" else 0))
        m.call("set_open_flags", 0)
        fd = os.open(m / "f", os.O_RDWR)
        buffer = mmap.mmap(-1, BLOCK)
        # While the file is mapped for writing, O_DIRECT takes FUSE's own way.
        with mmap.mmap(fd, BLOCK, offset=2 * BLOCK):
            for _ in range(2):
                os.preadv(past, [buffer], 0)
            assert sent(fd) == b"o"
            stores[0:1] = b"n"
            with m.answered("read"):
                os.preadv(past, [buffer], 0)
            assert [buffer[:1], sent(fd)] == [b"n", b"n"]
        os.close(past)
        os.close(fd)
    os.close(other)


def test_void_pages_are_not_written_back_under_their_lock(
    source: Mount, mountpoint: Path, lower: Path
) -> None:
    """A task that writes below from a map of the page has the lock that the WRITE waits for."""
    path = backing(lower, fill("o", 4 * BLOCK))
    with mounted(mountpoint, **LONG) as m:
        make(source, "source", fill("s", BLOCK))
        make(m, "f", fill("d", 4 * BLOCK))
        whole(m, path, write=True)
        fd, other = os.open(m / "f", os.O_RDWR), os.open(path, os.O_WRONLY)
        held = os.open(source / "source", os.O_RDONLY)
        with (
            mmap.mmap(held, BLOCK, prot=mmap.PROT_READ) as first,
            mmap.mmap(fd, BLOCK) as second,
        ):
            second[:2] = b"ss"
            source.hold("read", "before")
            writer = Call(os.pwritev, other, [memoryview(first), memoryview(second)], BLOCK)
            source.wait_held()
            whole(m, path, write=True)
            reader = Call(os.pread, fd, 10, 3 * BLOCK)
            # The WRITE of the void page is in flight, but the page is not locked.
            eventually(reader.done, "the reader is done")
            source.release()
            assert writer.result() == 2 * BLOCK
            assert reader.result() == fill("o", 4 * BLOCK)[3 * BLOCK :][:10]
        for number in (fd, other, held):
            os.close(number)
        rest = fill("o", BLOCK)[2:]
        assert Path(path).read_bytes()[: 3 * BLOCK] == (
            b"ss" + rest + fill("s", BLOCK) + b"ss" + rest
        )


def refreshes(call: Call[bytes]) -> bool:
    """Return whether the call waits for pages that are to be dropped."""
    return any(name.startswith("efuse_") and "refresh" in name for name in call.within())


# The number of blocks. FUSE reads 32 ahead.
_MANY = 64


def _hung_read(m: Mount, path: str, fd: int) -> Call[bytes]:
    """Leave a READ of the first pages at the daemon, and make the file's pages void."""

    def map_second_half(blocks: int) -> None:
        start, length = _MANY // 2 * BLOCK, blocks * BLOCK
        place = {"offset": start, "length": length, "backing_offset": start}
        m.call("map_extent", "f", path, os.O_RDONLY, **place)

    map_second_half(_MANY // 2)
    m.hold("read", "before")
    reader = Call(sent, fd, 0)
    m.wait_held()
    map_second_half(1)
    return reader


def _mapped_block(fd: int, position: int) -> bytes:
    with mmap.mmap(fd, BLOCK, offset=position, prot=mmap.PROT_READ) as view:
        return view[:]


def test_mmap_does_not_wait_for_the_daemon(mountpoint: Path, lower: Path) -> None:
    """Otherwise a process that reads the caller's /proc would wait, too, maybe the daemon."""
    data = fill("o", _MANY * BLOCK)
    path = backing(lower, data)
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("d", _MANY * BLOCK))
        fd = os.open(m / "f", os.O_RDONLY)
        reader = _hung_read(m, path, fd)
        place = 48 * BLOCK
        # In a process of its own, which is killed if it hangs.
        with running(_mapped_block, fd, place) as mapping:
            assert mapping.result() == data[place : place + BLOCK]
        assert not reader.done()
        m.release()
        assert reader.result() == b"d"
        os.close(fd)


def test_read_that_waits_for_the_daemon_can_be_killed(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("o", _MANY * BLOCK))
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("d", _MANY * BLOCK))
        fd = os.open(m / "f", os.O_RDONLY)
        reader = _hung_read(m, path, fd)
        other = Call(os.pread, fd, 10, 48 * BLOCK)
        eventually(lambda: refreshes(other), "the reader waits")
        other.kill()
        assert not reader.done()
        m.release()
        assert reader.result() == b"d"
        os.close(fd)


def test_write_does_not_wait_for_a_writer_of_the_backing_file_from_a_map(
    source: Mount, mountpoint: Path, lower: Path
) -> None:
    """The other task has the backing file's lock, and faults in a page of the file above."""
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
        wait_until_below(second)
        source.release()
        assert first.result() == 2 * BLOCK
        assert second.result() == BLOCK
        old = fill("o", 4 * BLOCK)
        assert Path(path).read_bytes() == old[:BLOCK] + fill("s", BLOCK) + old[:BLOCK] + fill(
            "w", BLOCK
        )


class Mapped:
    """A process that maps a file, reads it, stores to it, and shows it when it is told to.

    It is not the test's own process: starting another program would close the file and write it
    back.
    """

    def __init__(self, m: Mount, position: int) -> None:
        (self._ready, ready), (go, self._go) = os.pipe(), os.pipe()

        def run() -> tuple[bytes, bytes]:
            os.close(self._go)
            with mmap.mmap(os.open(m / "f", os.O_RDWR), 0) as view:
                before = view[:]
                os.write(ready, b"r")
                view[position : position + 2] = b"ss"
                os.write(ready, b"s")
                os.read(go, 1)
                after = view[:]
                view.flush()
            return before, after

        self._call = Call(run)
        os.close(ready)
        os.close(go)
        assert os.read(self._ready, 1) == b"r"

    def waits(self) -> None:
        """Wait until the store waits for a write in flight."""
        eventually(lambda: "efuse_page_mkwrite" in self._call.within(), "the store waits")

    def stores(self) -> None:
        """Wait until the process has stored."""
        assert os.read(self._ready, 1) == b"s"

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self._call.kill()
        os.close(self._ready)
        os.close(self._go)

    def shows(self) -> tuple[bytes, bytes]:
        """Return the bytes from before the store, and the bytes now. The store is written back."""
        os.write(self._go, b"g")
        shown = self._call.result()
        os.close(self._ready)
        os.close(self._go)
        return shown


def test_map_made_during_a_write_to_the_backing_file_loses_none_of_its_bytes(
    mountpoint: Path, lower: Path, slow: Path
) -> None:
    """A store to a page that was read meanwhile waits, as its write-back would undo the write."""
    path = backing(slow, b"o" * BLOCK)
    with mounted(mountpoint, **LONG) as m:
        make(m, "f", b"d" * BLOCK)
        whole(m, path, write=True)
        with busy(path):
            writer = Call(write, m / "f", b"w" * 100)
            wait_until_below(writer)
            mapped = Mapped(m, 2000)
            mapped.waits()
        assert writer.result() == 100
        expected = b"w" * 100 + b"o" * 1900 + b"ss" + b"o" * (BLOCK - 2002)
        assert mapped.shows() == (b"o" * BLOCK, expected)
        assert Path(path).read_bytes() == expected


@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
def test_reads_return_nothing_older_while_a_write_goes_through_pages(
    mountpoint: Path, lower: Path, slow: Path, consistency: str
) -> None:
    """As the file is mapped for writing, the write takes FUSE's own way, and shows in the page."""
    path = backing(slow, b"o" * BLOCK)
    # Otherwise closing a file would wait for the write, too.
    flags = FOPEN_NOFLUSH | FOPEN_KEEP_CACHE
    with mounted(mountpoint, consistency=consistency, open_flags=flags, **LONG) as m:
        make(m, "f", b"o" * BLOCK)
        whole(m, path, write=True)
        reader, writer = os.open(m / "f", os.O_RDONLY), os.open(m / "f", os.O_WRONLY)
        mapper = os.open(m / "f", os.O_RDWR)
        view = mmap.mmap(mapper, BLOCK)
        view.madvise(mmap.MADV_DONTFORK)
        os.close(mapper)
        assert sent(reader) == b"o"
        with busy(path):
            call = Call(os.pwrite, writer, b"w" * 100, 0)
            wait_until_below(call)
            assert os.pread(reader, 1, 0) == b"w"
            view.close()
            assert os.pread(reader, 1, 0) == b"w"
            assert not call.done()
        assert call.result() == 100
        os.close(reader)
        os.close(writer)
        assert Path(path).read_bytes() == b"w" * 100 + b"o" * (BLOCK - 100)


def test_store_to_another_page_does_not_wait_for_a_write_in_progress(
    mountpoint: Path, lower: Path, slow: Path
) -> None:
    path = backing(slow, b"o" * (2 * BLOCK))
    with mounted(mountpoint, **LONG) as m:
        make(m, "f", b"d" * (2 * BLOCK))
        whole(m, path, write=True)
        with busy(path):
            writer = Call(write, m / "f", b"w" * 100)
            wait_until_below(writer)
            mapped = Mapped(m, BLOCK)
            mapped.stores()
            assert not writer.done()
        assert writer.result() == 100
        expected = b"w" * 100 + b"o" * (BLOCK - 100) + b"ss" + b"o" * (BLOCK - 2)
        assert mapped.shows()[1] == expected
        assert Path(path).read_bytes() == expected


def test_store_that_waits_for_a_write_in_progress_can_be_killed(
    mountpoint: Path, lower: Path, slow: Path
) -> None:
    path = backing(slow, b"o" * BLOCK)
    # Otherwise closing a file would wait for the write, too.
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", b"d" * BLOCK)
        whole(m, path, write=True)
        with busy(path):
            writer = Call(write, m / "f", b"w" * 100)
            wait_until_below(writer)
            mapped = Mapped(m, 50)
            mapped.waits()
            mapped.kill()
            assert not writer.done()
        assert writer.result() == 100
        assert Path(path).read_bytes() == b"w" * 100 + b"o" * (BLOCK - 100)


def test_map_made_during_an_append_to_the_backing_file_appends_once(
    mountpoint: Path, lower: Path, slow: Path
) -> None:
    path = backing(slow, b"o" * 100)
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        make(m, "f", b"d" * 100)
        whole(m, path, write=True)
        with busy(path):
            writer = Call(write, m / "f", b"w" * 10, 0, os.O_APPEND)
            wait_until_below(writer)
            mapped = Mapped(m, 50)
            mapped.waits()
        assert writer.result() == 10
        mapped.shows()
        assert Path(path).read_bytes() == b"o" * 50 + b"ss" + b"o" * 48 + b"w" * 10


@pytest.fixture
def xfs(tmp_path: Path, lower: Path) -> Iterator[Path]:
    """Yield a lower file system that takes a file's lock to read it."""
    image, root = lower / "image", tmp_path / "xfs"
    with image.open("wb") as file:
        file.truncate(320 << 20)
    root.mkdir()
    load_file_system("xfs")
    run("mkfs.xfs", "-q", image)
    run("mount", "-o", "loop", image, root)
    yield root
    run("umount", root)


def test_page_fault_under_the_backing_files_lock_goes_to_the_daemon(
    mountpoint: Path, xfs: Path
) -> None:
    """In the kernel, the task would wait for itself, and could not be killed."""
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


def test_read_of_the_backing_file_into_a_map_does_not_wait_for_itself(
    mountpoint: Path, xfs: Path
) -> None:
    """The reader has the lock below, and a writer already waits for it when the page is read."""
    path = backing(xfs, fill("o", 4 * BLOCK))
    with mounted(mountpoint, path="direct", **LONG) as m:
        make(m, "f", fill("o", 4 * BLOCK))
        whole(m, path, write=True)
        fd, other = os.open(m / "f", os.O_RDONLY), os.open(path, os.O_RDWR)
        ready, go = os.pipe()

        def reader() -> int:
            for _ in range(200):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                private = {"flags": mmap.MAP_PRIVATE, "prot": mmap.PROT_READ | mmap.PROT_WRITE}
                with mmap.mmap(fd, BLOCK, **private) as view:
                    assert os.preadv(other, [view], BLOCK) == BLOCK
                    assert view[:] == fill("o", 4 * BLOCK)[BLOCK : 2 * BLOCK]
            return 200

        def writer() -> int:
            os.close(go)
            written = 0
            while not select.select([ready], [], [], 0)[0]:
                written += os.pwrite(other, b"w" * 8, 3 * BLOCK)
            return written

        # Only a writer that waits is in the way.
        assert Call(reader).result() == 200
        assert m.count("read", "hits")
        writers = [Call(writer) for _ in range(2)]
        assert Call(reader).result() == 200
        os.close(go)
        assert all(each.result() for each in writers)
        for number in (fd, other, ready):
            os.close(number)
        assert m.count("read", "declined")


@pytest.mark.parametrize("middle", ["extents", "passthrough", "direct I/O"])
def test_page_fault_on_stacked_mounts_does_not_wait_for_the_lowest_lock(
    tmp_path: Path, mountpoint: Path, xfs: Path, middle: str
) -> None:
    """A program that writes to the lowest file from a map of the highest one has the lock there."""
    path = backing(xfs, fill("o", 4 * BLOCK))
    root = tmp_path / "middle"
    root.mkdir()
    flags = FOPEN_NOFLUSH | (FOPEN_DIRECT_IO if middle == "direct I/O" else 0)
    lowest = {"passthrough": path} if middle == "passthrough" else {}
    with (
        mounted(root, open_flags=flags, attach=not lowest, **LONG, **lowest) as m1,
        mounted(mountpoint, stack_depth=2, open_flags=FOPEN_NOFLUSH, **LONG) as m2,
    ):
        make(m1, "g", fill("o", 4 * BLOCK))
        if not lowest:
            m1.call("map_extent", "g", path, os.O_RDWR, write=True)
        make(m2, "f", fill("d", 4 * BLOCK))
        m1.log()
        m2.log()
        m2.call("map_extent", "f", m1 / "g", os.O_RDWR, write=True)
        fd, other = os.open(m2 / "f", os.O_RDONLY), os.open(path, os.O_RDWR)

        def below() -> int:
            with mmap.mmap(fd, BLOCK, prot=mmap.PROT_READ) as view:
                return os.pwrite(other, view, 2 * BLOCK)

        assert Call(below).result() == BLOCK
        # The page came from a daemon, which has its own bytes.
        answer, asked = ("o", m1) if middle == "extents" else ("d", m2)
        assert os.pread(other, BLOCK, 2 * BLOCK) == fill(answer, BLOCK)
        assert "read" in asked.asked()
        os.close(fd)
        os.close(other)


def test_page_of_a_write_through_pages_stays_until_the_daemon_has_answered(
    mountpoint: Path, lower: Path
) -> None:
    """The page becomes void while the WRITE is under way. A READ would bring older bytes."""
    path = backing(lower, fill("d", BLOCK))
    with mounted(
        mountpoint, path="daemon", open_flags=FOPEN_NOFLUSH | FOPEN_KEEP_CACHE, **LONG
    ) as m:
        make(m, "f", fill("d", BLOCK))
        reader, writer = os.open(m / "f", os.O_RDONLY), os.open(m / "f", os.O_WRONLY)
        assert sent(reader) == b"d"
        m.hold("write", "before")
        call = Call(os.pwrite, writer, fill("w", BLOCK), 0)
        m.wait_held()
        whole(m, path)
        assert sent(reader) == b"w"
        m.release()
        assert call.result() == BLOCK
        assert sent(reader) == b"w"
        os.close(reader)
        os.close(writer)


def test_store_to_a_void_page_waits_for_a_write_through_pages(
    mountpoint: Path, lower: Path
) -> None:
    path = backing(lower, fill("d", BLOCK))
    with mounted(
        mountpoint, path="daemon", open_flags=FOPEN_NOFLUSH | FOPEN_KEEP_CACHE, **LONG
    ) as m:
        make(m, "f", fill("d", BLOCK))
        fd, writer = os.open(m / "f", os.O_RDWR), os.open(m / "f", os.O_WRONLY)

        def store() -> None:
            with random_view(fd, 1) as view:
                view[:2] = b"ss"
                view.flush()

        assert sent(fd) == b"d"
        m.hold("write", "before")
        writing = Call(os.pwrite, writer, fill("w", BLOCK), 0)
        m.wait_held()
        whole(m, path)
        storing = Call(store)
        eventually(
            lambda: storing.done() or {"efuse_page_mkwrite", "fuse_fsync"} & set(storing.within()),
            "the store has begun",
        )
        m.release()
        assert writing.result() == BLOCK
        storing.result()
        os.close(fd)
        os.close(writer)
        assert bytes(m.call("inode", "f").data) == b"ss" + fill("w", BLOCK)[2:]


def test_store_does_not_wait_for_the_buffer_of_a_write_to_its_page(
    mountpoint: Path, lower: Path
) -> None:
    """The second page of the write(2)'s buffer is a map of a file whose READ is held."""
    path = backing(lower, fill("d", 2 * BLOCK))
    with mounted(
        mountpoint, path="daemon", open_flags=FOPEN_NOFLUSH | FOPEN_KEEP_CACHE, **LONG
    ) as m:
        make(m, "f", fill("d", 2 * BLOCK))
        make(m, "g", fill("g", BLOCK))
        fd, buffer = os.open(m / "f", os.O_RDWR), os.open(m / "g", os.O_RDONLY)

        def write_two_pages() -> int:
            both, fixed = mmap.PROT_READ | mmap.PROT_WRITE, 0x10
            anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            start = libc.mmap(None, 2 * BLOCK, both, anonymous, -1, 0)
            ctypes.memmove(start, fill("w", BLOCK), BLOCK)
            second = start + BLOCK
            shown = libc.mmap(second, BLOCK, mmap.PROT_READ, mmap.MAP_SHARED | fixed, buffer, 0)
            assert shown == second
            return int(libc.pwrite(fd, start, 2 * BLOCK, 0))

        assert sent(fd) == b"d"
        whole(m, path)
        m.hold("read", "before")
        writing = Call(write_two_pages)
        m.wait_held()
        storing = Call(_store_first, fd)
        eventually(storing.done, "the store ends while the write waits for its buffer")
        m.release()
        assert writing.result() == 2 * BLOCK
        storing.result()
        os.close(fd)
        os.close(buffer)
        # The store came first: the buffer is made present before the WRITE has pages.
        expected = fill("w", BLOCK) + fill("g", BLOCK)
        assert bytes(m.call("inode", "f").data) == expected


def test_store_does_not_wait_for_a_page_of_the_buffer_that_is_dropped_again(
    mountpoint: Path, lower: Path
) -> None:
    """The buffer's first page is dropped, and its second one while the first is read again."""
    path = backing(lower, fill("d", 2 * BLOCK))
    new = fill("g", 2 * BLOCK)
    with mounted(
        mountpoint, path="daemon", open_flags=FOPEN_NOFLUSH | FOPEN_KEEP_CACHE, **LONG
    ) as m:
        make(m, "f", fill("d", 2 * BLOCK))
        make(m, "g", new)
        fd, buffer = os.open(m / "f", os.O_RDWR), os.open(m / "g", os.O_RDONLY)

        def write_two_pages() -> int:
            start = libc.mmap(None, 2 * BLOCK, mmap.PROT_READ, mmap.MAP_SHARED, buffer, 0)
            libc.madvise(ctypes.c_void_p(start), 2 * BLOCK, mmap.MADV_RANDOM)
            return int(libc.pwrite(fd, ctypes.c_void_p(start), 2 * BLOCK, 0))

        assert sent(fd) == b"d"
        whole(m, path)
        m.hold("read", "before")
        writing = Call(write_two_pages)
        for dropped in (None, 0, BLOCK):
            m.wait_held()
            if dropped is not None:
                m.call("inval_inode", "g", dropped, BLOCK)
            m.call("release_and_hold", "read", "before")
        m.wait_held()
        storing = Call(_store_first, fd)
        eventually(storing.done, "the store ends while the write waits for its buffer")
        m.release()
        assert writing.result() == 2 * BLOCK
        storing.result()
        os.fsync(fd)
        os.close(fd)
        os.close(buffer)
        # The store came after the WRITE of the first page.
        assert bytes(m.call("inode", "f").data) == b"ss" + new[2:]


def test_bytes_of_a_failed_write_through_pages_are_not_shown(mountpoint: Path) -> None:
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH | FOPEN_KEEP_CACHE, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        assert sent(fd) == b"d"
        m.call("deny", "write", 0, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            os.pwrite(fd, fill("w", BLOCK), 0)
        assert sent(fd) == b"d"
        os.close(fd)


def test_write_beyond_eof_in_a_write_back_mount_is_killable_at_the_last_page(
    mountpoint: Path, lower: Path
) -> None:
    """A store through a map has the page's lock, and waits for the page to be written back."""
    path = backing(lower, b"o" * 100)
    options = {
        "generic_flags": FUSE_WRITEBACK_CACHE,
        "open_flags": FOPEN_NOFLUSH | FOPEN_KEEP_CACHE,
        **LONG,
    }
    with mounted(mountpoint, **options) as m:
        make(m, "f", b"o" * 100)
        whole(m, path)
        fd = os.open(m / "f", os.O_RDWR)
        end, go = os.pipe()

        def store() -> None:
            with mmap.mmap(fd, 100) as other:
                other[:1] = b"Q"

        view = mmap.mmap(fd, 100)
        view.madvise(mmap.MADV_DONTFORK)
        view[:1] = b"P"
        m.hold("write", "before")
        syncer = Call(written_back, fd, end)
        m.wait_held()
        storing = Call(store)
        eventually(lambda: "fuse_page_mkwrite" in storing.within(), "the store has the page's lock")
        writing = Call(os.pwrite, fd, b"x", 2 * BLOCK)
        begins = {"fuse_write_begin", "iomap_file_buffered_write"}
        eventually(lambda: begins & set(writing.within()), "the write waits for the page")
        os.kill(writing.pid, signal.SIGKILL)
        # Its exit waits for the WRITE, as on plain FUSE: close(2) takes the inode lock.
        eventually(lambda: not begins & set(writing.within()), "the write ends")
        m.release()
        os.write(go, b"g")
        storing.result()
        assert syncer.result() == 0
        view.close()
        for each in (fd, end, go):
            os.close(each)


def test_write_beyond_eof_keeps_a_page_that_was_read_again(mountpoint: Path, lower: Path) -> None:
    """The backing file is longer than FUSE knows. The page comes back before FUSE writes.

    Without handlers, FUSE asks for security.capability twice: eFuse before the paths, and FUSE.
    """
    path = backing(lower, b"o" * 200)
    eventually(lambda: is_old(path))
    with mounted(
        mountpoint, attach=False, open_flags=FOPEN_NOFLUSH | FOPEN_KEEP_CACHE, **LONG
    ) as m:
        make(m, "f", b"d" * 100)
        whole(m, path, write=True)
        fd, writer = os.open(m / "f", os.O_RDWR), os.open(m / "f", os.O_WRONLY)
        both = mmap.PROT_READ | mmap.PROT_WRITE
        address = libc.mmap(None, BLOCK, both, mmap.MAP_SHARED, fd, 0)
        assert ctypes.string_at(address + 150, 1) == b"o"
        m.hold("getxattr", "before")
        writing = Call(os.pwrite, writer, b"x", 2 * BLOCK)
        m.wait_held()
        m.call("release_and_hold", "getxattr", "before")
        m.wait_held()
        assert ctypes.string_at(address + 150, 1) == b"o"
        m.release()
        assert writing.result() == 1
        assert ctypes.string_at(address + 150, 1) == b"o"
        ctypes.memmove(address, b"P", 1)
        os.fsync(fd)
        assert libc.munmap(address, BLOCK) == 0
        os.close(fd)
        os.close(writer)
        expected = b"P" + b"o" * 199 + bytes(2 * BLOCK - 200) + b"x"
        assert Path(path).read_bytes() == expected


def test_write_beyond_an_invalidated_eof_asks_for_the_size(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, b"o" * 100)
    options = {"open_flags": FOPEN_NOFLUSH | FOPEN_KEEP_CACHE, **LONG}
    with mounted(mountpoint, consistency="exclusive", **options) as m:
        make(m, "f", b"o" * 100)
        whole(m, path, write=True)
        fd, writer = os.open(m / "f", os.O_RDWR), os.open(m / "f", os.O_WRONLY)
        both = mmap.PROT_READ | mmap.PROT_WRITE
        address = libc.mmap(None, BLOCK, both, mmap.MAP_SHARED, fd, 0)
        assert ctypes.string_at(address, 1) == b"o"
        with open(path, "ab") as file:
            file.write(b"n" * 100)
        m.model.put("f", b"o" * 100 + b"n" * 100)
        m.call("inval_inode", "f")
        assert sent(fd) == b"o"  # the pages are true again; splice(2) asks for no size
        assert ctypes.string_at(address + 150, 1) == b"n"
        assert os.pwrite(writer, b"x", 2 * BLOCK) == 1
        assert ctypes.string_at(address + 150, 1) == b"n"
        ctypes.memmove(address, b"P", 1)
        os.fsync(fd)
        assert libc.munmap(address, BLOCK) == 0
        os.close(fd)
        os.close(writer)
        expected = b"P" + b"o" * 99 + b"n" * 100 + bytes(2 * BLOCK - 200) + b"x"
        assert Path(path).read_bytes() == expected
