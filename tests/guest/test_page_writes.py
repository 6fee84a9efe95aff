# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test write(2) through FUSE's own pages: it ends, and no byte that it has written is lost."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Call, Mount, eventually, force_stat, mounted, running
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG, is_old, libc, random_view, sent, written_back
from tests.guest.support.manual_daemon import DEADLINE_S, until
from tests.guest.support.running_kernel import LINUX
from tests.guest.support.wire import FOPEN_KEEP_CACHE, FOPEN_NOFLUSH, FUSE_WRITEBACK_CACHE

_KEEP = FOPEN_NOFLUSH | FOPEN_KEEP_CACHE
_MODES = pytest.mark.parametrize("flags", [0, FUSE_WRITEBACK_CACHE], ids=["through", "write-back"])


def _write_part(fd: int, view: mmap.mmap, first: int, end: int) -> int:
    """Write a part of a map to the start of a file."""
    return os.pwrite(fd, memoryview(view)[first:end], 0)


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


# A buffer that is a map of the file.


@_MODES
@pytest.mark.parametrize("how", ["INVAL_INODE", "MAP", "sysfs"])
def test_write_from_a_map_of_the_void_page_that_it_fills_ends(
    mountpoint: Path, lower: Path, how: str, flags: int
) -> None:
    """The buffer is absent whenever the page has been dropped. It is the same in both contents."""
    old = fill("d", BLOCK)
    new = fill("n", 2000) + old[2000:2100] + fill("n", BLOCK)[2100:]
    path = backing(lower, new)
    with mounted(mountpoint, path="daemon", generic_flags=flags, open_flags=_KEEP, **LONG) as m:
        make(m, "f", old)
        fd = os.open(m / "f", os.O_RDWR)
        with mmap.mmap(fd, BLOCK, prot=mmap.PROT_READ) as view:
            assert view[:] == old
            m.model.put("f", new)
            if how == "INVAL_INODE":
                m.call("inval_inode", "f")
            elif how == "MAP":
                whole(m, path, write=True)
            else:
                m.connection.invalidate()
            with running(_write_part, fd, view, 2000, 2100) as writing:
                eventually(writing.done, "the write(2) ends", deadline_s=DEADLINE_S)
                assert writing.result() == 100
            os.fsync(fd)
            expected = old[2000:2100] + new[100:]
            assert os.pread(fd, BLOCK, 0) == view[:] == expected
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == expected


@_MODES
def test_write_of_a_void_file_to_itself_by_a_map_ends(mountpoint: Path, flags: int) -> None:
    """A program moves the file's bytes to its start, over the first 100 bytes."""
    data = fill("d", 4 * BLOCK)
    with mounted(mountpoint, generic_flags=flags, open_flags=_KEEP, **LONG) as m:
        make(m, "f", data)
        fd = os.open(m / "f", os.O_RDWR)
        with mmap.mmap(fd, len(data), prot=mmap.PROT_READ) as view:
            assert view[:] == data
            m.call("inval_inode", "f")
            with running(_write_part, fd, view, 100, len(data)) as writing:
                eventually(writing.done, "the write(2) ends", deadline_s=DEADLINE_S)
                assert writing.result() == len(data) - 100
            os.fsync(fd)
            expected = data[100:] + data[-100:]
            assert os.pread(fd, len(data), 0) == view[:] == expected
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == expected


# A buffer that is not present.


@pytest.mark.parametrize("buffer", ["present", "new map", "MADV_DONTNEED", "anonymous"])
def test_write_of_an_absent_buffer_sends_no_more_requests(
    mountpoint: Path, lower: Path, buffer: str
) -> None:
    data = bytes(64 * BLOCK) if buffer == "anonymous" else fill("b", 64 * BLOCK)
    source = os.open(backing(lower, data), os.O_RDONLY)
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
        make(m, "f", b"")
        fd = os.open(m / "f", os.O_RDWR)
        number = -1 if buffer == "anonymous" else source
        with mmap.mmap(number, len(data), prot=mmap.PROT_READ) as view:
            if buffer in ("present", "MADV_DONTNEED"):
                assert view[:] == data
            if buffer == "MADV_DONTNEED":
                view.madvise(mmap.MADV_DONTNEED)
            m.log()
            assert os.pwrite(fd, view, 0) == len(data)
            assert m.asked().count("write") == 2
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == data
    os.close(source)


@pytest.mark.parametrize("old", [b"", b"old"], ids=["aligned", "unaligned"])
def test_append_of_two_pages_is_one_request_if_one_is_absent(mountpoint: Path, old: bytes) -> None:
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
        make(m, "f", old)
        fd = os.open(m / "f", os.O_RDWR | os.O_APPEND)
        # A WRITE ends at a page that it fills in part, unless the page is in the page cache.
        assert os.pread(fd, BLOCK, 0) == old
        with mmap.mmap(-1, 2 * BLOCK) as buffer:
            buffer[:5] = b"first"
            m.log()
            assert os.write(fd, buffer) == 2 * BLOCK
            assert m.asked().count("write") == 1
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == old + b"first" + bytes(2 * BLOCK - 5)


# A write-back mount: write(2) makes the whole page dirty.


def test_partial_write_reads_its_page_again_if_a_map_crosses_the_read(
    mountpoint: Path, lower: Path
) -> None:
    new = fill("n", BLOCK)
    path = backing(lower, new)
    options = {"generic_flags": FUSE_WRITEBACK_CACHE, "open_flags": FOPEN_NOFLUSH, **LONG}
    with mounted(mountpoint, **options) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        m.hold("read", "after")
        with running(os.pwrite, fd, b"xx", 100) as writing:
            m.wait_held()
            whole(m, path, write=True)
            reads, writes = m.count("read", "hits"), m.count("write", "hits")
            m.release()
            assert writing.result() == 2
        os.fsync(fd)
        expected = new[:100] + b"xx" + new[102:]
        assert os.pread(fd, BLOCK, 0) == expected
        os.close(fd)
        assert Path(path).read_bytes() == expected
        assert m.count("read", "hits") > reads
        assert m.count("write", "hits") > writes


def test_partial_write_that_waits_for_write_back_reads_a_page_that_became_void(
    mountpoint: Path, lower: Path
) -> None:
    """The daemon has the page's WRITE, then maps another content.

    From 7.x on, write(2) changes the page without waiting. So the page is dirty before the daemon
    maps the content, and is written to that content as a whole.
    """
    old, new = fill("d", BLOCK), fill("n", BLOCK)
    path = backing(lower, new)
    options = {"generic_flags": FUSE_WRITEBACK_CACHE, "open_flags": FOPEN_NOFLUSH, **LONG}
    with mounted(mountpoint, **options) as m, _pipe() as (end, go):
        make(m, "f", old)
        fd = os.open(m / "f", os.O_RDWR)
        os.pwrite(fd, b"w", 0)
        m.hold("write", "before")
        with running(written_back, fd, end) as syncing:
            m.wait_held()
            with running(os.pwrite, fd, b"xx", 100) as writing:
                until(lambda: writing.done() or "fuse_write_begin" in writing.within())
                assert writing.done() == (LINUX > 6)
                whole(m, path, write=True)
                hits = m.count("write", "hits")
                m.release()
                assert writing.result() == 2
            os.write(go, b"g")
            assert syncing.result() == 0
        os.fsync(fd)
        rest = new if LINUX < 7 else b"w" + old[1:]
        expected = rest[:100] + b"xx" + rest[102:]
        assert os.pread(fd, BLOCK, 0) == expected
        os.close(fd)
        assert Path(path).read_bytes() == expected
        assert m.count("write", "hits") > hits


def test_dirty_page_of_a_file_that_became_a_directory_may_be_invalidated(mountpoint: Path) -> None:
    """FUSE writes back no page of such an inode, also after its last descriptor is closed."""
    old = fill("d", BLOCK)
    with mounted(mountpoint, path="daemon", generic_flags=FUSE_WRITEBACK_CACHE, **LONG) as m:
        make(m, "f", old)
        fd = os.open(m / "f", os.O_RDWR)
        assert os.pwrite(fd, fill("n", BLOCK), 0) == BLOCK
        m.model.set_mode("f", stat.S_IFDIR | 0o755)
        with pytest.raises(OSError, match="Input/output error"):
            force_stat(fd)
        with pytest.raises(OSError, match="Input/output error"):
            os.close(fd)
        m.call("inval_inode", "f")
        m.model.set_mode("f", stat.S_IFREG | 0o644)
        assert bytes(m.call("inode", "f").data) == old


# A WRITE that is under way.


class _Onlooker:
    """A process that opens the file, looks at its first byte, and then looks again and stores.

    :ivar call: returns what it saw first and what it saw again.
    """

    def __init__(self, m: Mount, cpus: set[int], told: tuple[int, int], go: tuple[int, int]):
        self._m, self._cpus, self._told, self._go = m, cpus, told, go
        self.call = Call(self._run)

    def _run(self) -> tuple[bytes, bytes]:
        os.sched_setaffinity(0, self._cpus)
        fd = os.open(self._m / "f", os.O_RDWR)
        both = mmap.PROT_READ | mmap.PROT_WRITE
        address = libc.mmap(None, BLOCK, both, mmap.MAP_SHARED, fd, 0)  # sends no GETATTR
        first = ctypes.string_at(address, 1)
        os.write(self._told[1], b"t")
        os.read(self._go[0], 1)
        again = ctypes.string_at(address, 1)
        ctypes.memmove(address, b"ss", 2)
        os.fsync(fd)
        return first, again

    def has_looked(self) -> bool:
        """Return whether it has looked at the file once."""
        return bool(select.select([self._told[0]], [], [], 0)[0])

    def reads_page(self) -> bool:
        """Return whether it waits for a READ of the file's page."""
        return self.call.sleeps() and "filemap_fault" in self.call.within()

    def store(self) -> None:
        """Let it look again and store."""
        os.write(self._go[1], b"g")


@contextlib.contextmanager
def _onlooker(m: Mount, cpus: set[int]) -> Iterator[_Onlooker]:
    with _pipe() as told, _pipe() as go:
        made = _Onlooker(m, cpus, told, go)
        try:
            yield made
        finally:
            made.call.kill()


def test_open_by_another_task_during_a_write_does_not_undo_the_write(mountpoint: Path) -> None:
    """The daemon answers the READ of that task first. It lets FUSE keep no pages at an OPEN."""
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        assert sent(fd) == b"d"
        m.hold("write", "before")
        with (
            running(os.pwrite, fd, fill("w", BLOCK), 0) as writing,
            _onlooker(m, os.sched_getaffinity(0)) as other,
        ):
            m.wait_held()
            until(lambda: other.has_looked() or m.keeps_waiting(other.call, 1))
            m.release()
            assert writing.result() == BLOCK
            other.store()
            first, again = other.call.result()
        assert first in (b"d", b"w")
        assert again == b"w"
        expected = b"ss" + fill("w", BLOCK)[2:]
        assert os.pread(fd, BLOCK, 0) == expected
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == expected


def test_read_that_reaches_the_daemon_before_an_earlier_write_does_not_undo_the_write(
    mountpoint: Path,
) -> None:
    """The daemon has one thread, which prefers the requests of its own processor."""
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        os.sched_setaffinity(m.pid, {1})
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        assert sent(fd) == b"d"
        os.pwrite(fd, b"d", 0)

        def write() -> int:
            os.sched_setaffinity(0, {0})
            return os.pwrite(fd, fill("w", BLOCK), 0)

        m.call("pause")
        with _onlooker(m, {1}) as other:
            until(lambda: "request_wait_answer" in other.call.within())
            with running(write) as writing:
                until(lambda: _write_is_queued(writing))
                m.call("resume", "open")
                until(lambda: m.call("paused"))
                until(
                    lambda: (
                        other.has_looked() or other.reads_page() or m.keeps_waiting(other.call, 1)
                    )
                )
                m.call("resume")
                assert writing.result() == BLOCK
            other.store()
            first, again = other.call.result()
        assert first in (b"d", b"w")
        assert again == b"w"
        expected = b"ss" + fill("w", BLOCK)[2:]
        assert os.pread(fd, BLOCK, 0) == expected
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == expected


def test_store_that_waits_for_a_write_reads_a_page_that_an_open_dropped(mountpoint: Path) -> None:
    """Another program has changed the rest of the page."""
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        assert sent(fd) == b"d"

        def store() -> None:
            with random_view(fd, 1) as view:
                view[100:102] = b"ss"

        m.hold("write", "before")
        with running(os.pwrite, fd, b"ww", 0) as writing:
            m.wait_held()
            m.model.put("f", fill("n", BLOCK))
            os.close(os.open(m / "f", os.O_RDONLY))
            with running(store) as storing:
                until(lambda: storing.done() or m.keeps_waiting(storing, 1))
                m.release()
                assert writing.result() == 2
                storing.result()
        os.fsync(fd)
        os.close(fd)
        expected = b"ww" + fill("n", BLOCK)[2:100] + b"ss" + fill("n", BLOCK)[102:]
        assert bytes(m.call("inode", "f").data) == expected


def _write_is_queued(call: Call[int]) -> bool:
    """Return whether the WRITE of a write(2) through pages waits for the daemon."""
    return {"fuse_perform_write", "request_wait_answer"} <= set(call.within())


def test_smaller_size_does_not_cut_the_data_of_a_queued_write(mountpoint: Path) -> None:
    """The daemon has answered a GETATTR before it reads the WRITE."""
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        assert sent(fd) == b"d"
        os.pwrite(fd, b"d", 0)
        m.model.put("f", b"d" * 100)
        m.hold("getattr", "after")
        with running(force_stat, fd) as asking:
            m.wait_held()
            m.call("pause")
            with running(os.pwrite, fd, fill("w", BLOCK), 0) as writing:
                until(lambda: _write_is_queued(writing))
                m.release("getattr")
                until(lambda: asking.done() or m.keeps_waiting(asking, 1))
                m.call("resume")
                assert writing.result() == BLOCK
            asking.result()
        assert bytes(m.call("inode", "f").data) == fill("w", BLOCK)
        assert os.pread(fd, BLOCK, 0) == fill("w", BLOCK)
        os.close(fd)


def test_store_during_a_write_of_its_page_is_not_undone_by_the_write(
    mountpoint: Path, lower: Path
) -> None:
    """The daemon has the WRITE. The kernel could write the stored bytes to the backing file."""
    path = backing(lower, fill("d", BLOCK))
    with mounted(mountpoint, path="daemon", write_through=path, open_flags=_KEEP, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        assert sent(fd) == b"d"

        def store() -> None:
            with random_view(fd, 1) as view:
                view[:2] = b"ss"
                assert written_back(fd, end) == 0

        with _pipe() as (end, go):
            os.write(go, b"g")
            m.hold("write", "before")
            with running(os.pwrite, fd, fill("w", BLOCK), 0) as writing:
                m.wait_held()
                hits = m.count("write", "hits")
                m.connection.forced_path = "auto"
                with running(store) as storing:
                    until(lambda: storing.done() or m.keeps_waiting(storing, 1))
                    m.release()
                    assert writing.result() == BLOCK
                    storing.result()
        expected = b"ss" + fill("w", BLOCK)[2:]
        with random_view(fd, 1) as view:
            assert view[:] == expected
            view.flush()
        os.close(fd)
        assert m.count("write", "hits") > hits
        assert Path(path).read_bytes() == expected


def test_write_beyond_eof_keeps_bytes_of_a_page_under_write_back(
    mountpoint: Path, lower: Path
) -> None:
    """The backing file is longer than FUSE knows, and a map shows the bytes behind the end."""
    path = backing(lower, b"o" * 200)
    eventually(lambda: is_old(path))
    options = {"write_through": path, "open_flags": _KEEP, **LONG}
    with mounted(mountpoint, **options) as m, _pipe() as (end, go):
        make(m, "f", b"d" * 100)
        whole(m, path, write=True)
        fd, writer = os.open(m / "f", os.O_RDWR), os.open(m / "f", os.O_WRONLY)
        both = mmap.PROT_READ | mmap.PROT_WRITE
        address = libc.mmap(None, BLOCK, both, mmap.MAP_SHARED, fd, 0)
        assert ctypes.string_at(address, 200) == b"o" * 200
        m.connection.forced_path = "daemon"
        ctypes.memmove(address, b"P", 1)
        m.hold("write", "before")
        with running(written_back, fd, end) as syncing:
            m.wait_held()
            m.connection.forced_path = "auto"
            with running(os.pwrite, writer, b"x", 2 * BLOCK) as writing:
                until(lambda: writing.done() or m.keeps_waiting(writing, 1))
                m.release()
                os.write(go, b"g")
                assert syncing.result() == 0
                assert writing.result() == 1
        assert ctypes.string_at(address, 200) == b"P" + b"o" * 199
        ctypes.memmove(address + 1, b"Q", 1)
        os.fsync(fd)
        assert libc.munmap(address, BLOCK) == 0
        os.close(fd)
        os.close(writer)
        expected = b"PQ" + b"o" * 198 + bytes(2 * BLOCK - 200) + b"x"
        assert Path(path).read_bytes() == expected
