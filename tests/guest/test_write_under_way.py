# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test what is dropped, cut off or notified while a WRITE through FUSE's pages is under way."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import struct
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.guest.support.backing_files import make
from tests.guest.support.daemons import Call, Mount, eventually, force_stat, mounted, running
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG, has_byte, libc, random_view, sent
from tests.guest.support.manual_daemon import DEADLINE_S, until
from tests.guest.support.wire import FOPEN_KEEP_CACHE, FOPEN_NOFLUSH

_KEEP = FOPEN_NOFLUSH | FOPEN_KEEP_CACHE
_SYS_SET_ROBUST_LIST = 273
_OWNER_DIED = 0x40000000
_SYNC_FILE_RANGE_WRITE = 2
_kept_alive: list[object] = []


def _is_terminal(fd: int) -> int:
    """Send an IOCTL, as Python's open() does; return the errno."""
    try:
        fcntl.ioctl(fd, termios.TCGETS, bytes(64))
    except OSError as error:
        return error.errno or 0
    return 0


def _with_last_page(m: Mount, data: bytes) -> int:
    """Make a file of up to two pages, open it, and read its last page alone into the cache."""
    make(m, "f", data)
    fd = os.open(m / "f", os.O_RDWR)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    assert os.pread(fd, BLOCK, BLOCK) == data[BLOCK:]
    return fd


def _cut_and_grow(m: Mount, fd: int, kept: bytes, new: bytes) -> None:
    """Let one reply bring a smaller size of the file, and the next one that with *new* bytes."""
    for data in (kept, kept + new):
        m.model.put("f", data)
        assert force_stat(fd).st_size == len(data)


def test_store_that_waits_for_a_write_reads_a_page_that_an_open_dropped_during_an_ioctl(
    mountpoint: Path,
) -> None:
    """The daemon does not know the IOCTL, which is under way when the OPEN drops the page."""
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)

        def store() -> None:
            with random_view(fd, 1) as view:
                view[100:102] = b"ss"

        m.hold("ioctl", "before")
        with running(_is_terminal, fd) as asking:
            m.wait_held()
            assert sent(fd) == b"d"
            m.hold("write", "before")
            with running(os.pwrite, fd, b"ww", 0) as writing:
                m.wait_held(2)
                m.model.put("f", fill("n", BLOCK))
                os.close(os.open(m / "f", os.O_RDONLY))
                with running(store) as storing:
                    until(lambda: storing.done() or m.keeps_waiting(storing, 2))
                    m.release("write")
                    assert writing.result() == 2
                    storing.result()
            m.release()
            assert asking.result() == errno.ENOTTY
        os.fsync(fd)
        os.close(fd)
        expected = b"ww" + fill("n", BLOCK)[2:100] + b"ss" + fill("n", BLOCK)[102:]
        assert bytes(m.call("inode", "f").data) == expected


def test_store_does_not_undo_a_write_whose_page_was_cut_off_and_came_back(mountpoint: Path) -> None:
    """While the daemon has the WRITE, the file becomes shorter and longer again."""
    data = fill("d", 2 * BLOCK)
    with mounted(mountpoint, open_flags=_KEEP) as m:
        fd = _with_last_page(m, data)
        m.hold("write", "before")
        with running(os.pwrite, fd, fill("w", BLOCK), BLOCK) as writing:
            m.wait_held()
            _cut_and_grow(m, fd, data[:BLOCK], fill("n", BLOCK))
            with random_view(fd, 2) as view:
                assert view[BLOCK] in b"nw"  # the READ overtakes the WRITE
                m.release()
                assert writing.result() == BLOCK
                view[BLOCK + 100 : BLOCK + 102] = b"ss"
                view.flush()
        os.close(fd)
        expected = data[:BLOCK] + fill("w", BLOCK)[:100] + b"ss" + fill("w", BLOCK)[102:]
        assert bytes(m.call("inode", "f").data) == expected


def test_store_that_waits_for_a_write_reads_a_page_that_came_back_during_it(
    mountpoint: Path,
) -> None:
    """The page was cut off, and all pages of the file are true when the store begins."""
    data = fill("d", 2 * BLOCK)
    with mounted(mountpoint, open_flags=_KEEP) as m:
        fd = _with_last_page(m, data)

        def store() -> None:
            with random_view(fd, 2) as view:
                view[BLOCK + 100 : BLOCK + 102] = b"ss"

        m.hold("write", "before")
        with running(os.pwrite, fd, fill("w", BLOCK), BLOCK) as writing:
            m.wait_held()
            _cut_and_grow(m, fd, data[:BLOCK], fill("n", BLOCK))
            with running(store) as storing:
                until(lambda: storing.done() or m.keeps_waiting(storing, 1))
                m.release()
                assert writing.result() == BLOCK
                storing.result()
        os.fsync(fd)
        os.close(fd)
        expected = data[:BLOCK] + fill("w", BLOCK)[:100] + b"ss" + fill("w", BLOCK)[102:]
        assert bytes(m.call("inode", "f").data) == expected


def test_bytes_that_were_cut_off_during_a_write_do_not_come_back(mountpoint: Path) -> None:
    """A map has stored to the page. The reply with the size waits for a READ of another page."""
    data = fill("d", 2 * BLOCK)
    with mounted(mountpoint, open_flags=_KEEP) as m:
        make(m, "f", data)
        fd = os.open(m / "f", os.O_RDWR)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        with random_view(fd, 2) as view:
            view[BLOCK + 50 : BLOCK + 51] = b"s"
            m.hold("write", "before")
            with running(os.pwrite, fd, b"ww", BLOCK + 2000) as writing:
                m.wait_held()
                m.hold("read", "before")
                with running(os.pread, fd, BLOCK, 0) as reading:
                    m.wait_held(2)
                    m.model.put("f", data[: BLOCK + 100])
                    with running(force_stat, fd) as asking:
                        until(lambda: asking.done() or m.keeps_waiting(asking, 2))
                        m.release("write")
                        assert writing.result() == 2
                        m.release("read")
                        assert reading.result() == data[:BLOCK]
                        asking.result()
            view.flush()
        os.close(fd)
        kept = data[: BLOCK + 50] + b"s" + data[BLOCK + 51 : BLOCK + 100]
        assert bytes(m.call("inode", "f").data) == kept + bytes(1900) + b"ww"


def test_read_of_several_pages_that_began_before_the_file_grew_shows_no_zeros(
    mountpoint: Path,
) -> None:
    """The read(2) waits for its first page. Its second page, the last one, is being written."""
    data = fill("d", BLOCK) + b"d" * 100
    with mounted(mountpoint, open_flags=_KEEP) as m:
        make(m, "f", data)
        fd = os.open(m / "f", os.O_RDWR)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        assert os.pread(fd, BLOCK, BLOCK) == b"d" * 100
        m.hold("write", "before")
        with running(os.pwrite, fd, b"ww", BLOCK) as writing:
            m.wait_held()
            m.hold("read", "before")
            with running(os.pread, fd, 2 * BLOCK, 0) as reading:
                m.wait_held(2)
                m.model.put("f", data + b"n" * 100)
                with running(force_stat, fd) as asking:
                    until(lambda: asking.done() or m.keeps_waiting(asking, 2))
                    m.release("read")
                    until(lambda: reading.done() or m.keeps_waiting(reading, 1))
                    m.release("write")
                    assert writing.result() == 2
                    seen = reading.result()
                    asking.result()
        os.close(fd)
        shorter = fill("d", BLOCK) + b"ww" + b"d" * 98
        assert seen in (shorter, shorter + b"n" * 100)


def test_store_to_another_page_does_not_wait_for_a_write_of_a_page_that_was_void(
    mountpoint: Path,
) -> None:
    """The write(2) has dropped the void page that it fills. Other tasks read the file."""

    def store(fd: int) -> None:
        with random_view(fd, 8) as view:
            view[6 * BLOCK : 6 * BLOCK + 1] = b"s"
            os.write(told, b"t")
            os.read(go, 1)

    def read(fd: int) -> None:
        while True:
            os.pread(fd, BLOCK, 4 * BLOCK)

    stored, told = os.pipe()
    go, let = os.pipe()
    os.set_blocking(stored, False)
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
        make(m, "f", fill("d", 8 * BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        with contextlib.ExitStack() as stack:
            shown = stack.enter_context(mmap.mmap(fd, BLOCK, prot=mmap.PROT_READ))
            assert shown[:] == fill("d", BLOCK)
            m.connection.invalidate()  # the page is mapped, and stays
            m.hold("write", "before")
            writing = stack.enter_context(running(os.pwrite, fd, fill("w", BLOCK), 0))
            stack.callback(m.release)  # a killed writer waits for its answer
            m.wait_held()
            for _ in range(4):
                stack.enter_context(running(read, fd))
            storing = stack.enter_context(running(store, fd))
            eventually(lambda: has_byte(stored), "the store ends", deadline_s=DEADLINE_S)
            m.release()
            assert writing.result() == BLOCK
            os.write(let, b"g")
            storing.result()
        os.close(fd)
    for number in (stored, told, go, let):
        os.close(number)


def test_notified_data_does_not_replace_the_data_of_a_queued_write(mountpoint: Path) -> None:
    """The daemon sends a STORE before it reads the WRITE. On plain FUSE the write(2) is lost."""
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        assert sent(fd) == b"d"
        os.pwrite(fd, b"d", 0)
        m.call("pause")
        with running(os.pwrite, fd, fill("w", BLOCK), 0) as writing:
            until(lambda: {"fuse_perform_write", "request_wait_answer"} <= set(writing.within()))
            m.call("store", "f", 0, fill("n", BLOCK))
            m.call("resume")
            assert writing.result() == BLOCK
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == fill("w", BLOCK)


def test_page_that_a_notification_makes_during_a_write_shows_bytes_of_the_file(
    mountpoint: Path,
) -> None:
    """The page was cut off while the daemon has its WRITE; a STORE brings it back."""
    data = fill("d", 2 * BLOCK)
    new = fill("n", BLOCK)
    with mounted(mountpoint, open_flags=_KEEP) as m:
        fd = _with_last_page(m, data)
        m.hold("write", "before")
        with running(os.pwrite, fd, fill("w", BLOCK), BLOCK) as writing:
            m.wait_held()
            try:
                m.model.put("f", data[:BLOCK])
                assert force_stat(fd).st_size == BLOCK
                m.model.put("f", data[:BLOCK] + new)
                m.call("store", "f", BLOCK, new)
                seen = os.pread(fd, BLOCK, BLOCK)
            finally:
                m.release()
            assert writing.result() == BLOCK
        os.close(fd)
        assert seen in (new, fill("w", BLOCK))


@pytest.mark.parametrize("end", [200, 2 * BLOCK], ids=["in the page", "in another page"])
def test_notified_bytes_that_lengthen_a_file_during_a_write_are_not_shown_as_zeros(
    mountpoint: Path, end: int
) -> None:
    """No notification has the bytes between the old end and the new ones."""
    longer = b"d" * 100 + b"n" * (end - 100)
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
        make(m, "f", b"d" * 100)
        fd = os.open(m / "f", os.O_RDWR)
        assert os.pread(fd, BLOCK, 0) == b"d" * 100
        m.hold("write", "before")
        with running(os.pwrite, fd, b"ww", 0) as writing:
            m.wait_held()
            m.model.put("f", longer)
            m.call("store", "f", end - 100, b"n" * 100)
            with running(os.pread, fd, BLOCK, 0) as reading:
                until(lambda: reading.done() or m.keeps_waiting(reading, 1))
                m.release()
                assert writing.result() == 2
                seen = reading.result()
        os.close(fd)
        shorter = b"ww" + b"d" * 98
        assert seen in (shorter, (b"ww" + longer[2:])[:BLOCK])


def test_notified_bytes_next_to_those_of_a_write_are_shown_during_it(mountpoint: Path) -> None:
    data = fill("d", BLOCK)
    new = data[:2000] + b"n" * 100 + data[2100:]
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
        make(m, "f", data)
        fd = os.open(m / "f", os.O_RDWR)
        assert sent(fd) == b"d"
        m.hold("write", "before")
        with running(os.pwrite, fd, b"ww", 0) as writing:
            m.wait_held()
            try:
                m.model.put("f", new)
                m.call("store", "f", 2000, b"n" * 100)
                seen = os.pread(fd, 100, 2000)
            finally:
                m.release()
            assert writing.result() == 2
        os.close(fd)
        assert seen == b"n" * 100


def test_read_of_an_earlier_page_of_a_write_does_not_wait_if_the_file_grew(
    mountpoint: Path,
) -> None:
    data = fill("d", 5 * BLOCK + 100)
    written = fill("w", 5 * BLOCK + 50)
    with mounted(mountpoint, open_flags=_KEEP) as m, contextlib.ExitStack() as stack:
        make(m, "f", data)
        fd = os.open(m / "f", os.O_RDWR)
        stack.callback(os.close, fd)
        assert os.pread(fd, 6 * BLOCK, 0) == data
        m.hold("write", "before")
        writing = stack.enter_context(running(os.pwrite, fd, written, 0))
        stack.callback(m.release)  # a killed writer waits for its answer
        m.wait_held()
        m.model.put("f", data + b"n" * 100)
        assert force_stat(fd).st_size == len(data) + 100
        reading = stack.enter_context(running(os.pread, fd, 100, 0))
        eventually(reading.done, "the read ends", deadline_s=DEADLINE_S)
        assert reading.result() == written[:100]
        m.release()
        assert writing.result() == len(written)


def test_second_notification_replaces_all_of_a_page_that_came_back_during_a_write(
    mountpoint: Path,
) -> None:
    """The WRITE takes its bytes from the page that was cut off, not from the one in its place."""
    data = fill("d", 2 * BLOCK)
    first, second = fill("n", BLOCK), fill("m", BLOCK)
    with mounted(mountpoint, open_flags=_KEEP) as m:
        fd = _with_last_page(m, data)
        m.hold("write", "before")
        with running(os.pwrite, fd, b"w" * 100, BLOCK + 100) as writing:
            m.wait_held()
            try:
                m.model.put("f", data[:BLOCK])
                assert force_stat(fd).st_size == BLOCK
                for content in first, second:
                    m.model.put("f", data[:BLOCK] + content)
                    m.call("store", "f", BLOCK, content)
                seen = os.pread(fd, BLOCK, BLOCK)
            finally:
                m.release()
            assert writing.result() == 100
        os.close(fd)
        assert seen in (second, second[:100] + b"w" * 100 + second[200:])


def _exit_with_a_lock(fd: int, locked: int, go: int) -> None:
    """Take a robust lock that lies in a map of the file; the process ends without releasing it."""
    address = libc.mmap(None, BLOCK, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    ctypes.c_uint32.from_address(address).value = os.getpid()
    os.fsync(fd)
    head, entry = (ctypes.c_int64 * 3)(), (ctypes.c_int64 * 1)()
    entry[0] = ctypes.addressof(head)
    head[0] = ctypes.addressof(entry)
    head[1] = address - ctypes.addressof(entry)
    _kept_alive.extend([head, entry])
    assert libc.syscall(_SYS_SET_ROBUST_LIST, ctypes.byref(head), ctypes.sizeof(head)) == 0
    os.write(locked, b"l")
    os.read(go, 1)


def test_robust_lock_in_a_void_page_is_released_when_its_owner_exits(mountpoint: Path) -> None:
    """The kernel stores to the lock on behalf of the process that ends."""
    locked, told = os.pipe()
    go, let = os.pipe()
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
        make(m, "f", bytes(BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        with running(_exit_with_a_lock, fd, told, go) as owner:
            os.read(locked, 1)
            m.call("inval_inode", "f")
            os.write(let, b"g")
            owner.result()
        with mmap.mmap(fd, BLOCK, prot=mmap.PROT_READ) as view:
            (word,) = struct.unpack_from("=I", view, 0)
        os.close(fd)
        assert word == _OWNER_DIED
    for number in (locked, told, go, let):
        os.close(number)


def test_notified_data_does_not_replace_a_queued_write_whose_earlier_page_was_cut_off(
    mountpoint: Path,
) -> None:
    """A reply cuts page 1 off, and then waits for page 0. The WRITE holds page 2.

    7.x: page 2 is under write-back when the reply comes, so it is cut off later. 6.12: the write(2)
    waits for the write-back of page 2 and takes that page after page 1 was cut off.
    """
    data = fill("d", 3 * BLOCK)
    written = fill("w", 2 * BLOCK)
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
        make(m, "f", data)
        fd = os.open(m / "f", os.O_RDWR)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        m.hold("write", "before")
        with contextlib.ExitStack() as mapped:  # on 7.x, munmap(2) waits for the write-back
            view = mapped.enter_context(random_view(fd, 3))
            view[2 * BLOCK : 2 * BLOCK + 1] = b"s"
            assert libc.sync_file_range(fd, 2 * BLOCK, BLOCK, _SYNC_FILE_RANGE_WRITE) == 0
            m.wait_held()
            m.hold("read", "before")
            reading = mapped.enter_context(running(os.pread, fd, BLOCK, 0))
            m.wait_held(2)
            with running(os.pwrite, fd, written, BLOCK) as writing:
                until(lambda: writing.sleeps_in("fuse_perform_write"))
                m.model.put("f", b"")
                with running(force_stat, fd) as asking:
                    until(
                        lambda: asking.sleeps_in(
                            "efuse_pages_cut", "fuse_change_attributes", "fuse_do_getattr"
                        )
                    )
                    m.call("pause")
                    m.release("write")  # the write-back ends, and the write(2) goes on
                    until(
                        lambda: (
                            {"fuse_perform_write", "request_wait_answer"} <= set(writing.within())
                        )
                    )
                    m.call("store", "f", 2 * BLOCK, fill("n", BLOCK))
                    m.call("resume")
                    assert writing.result() == len(written)
                    m.release()
                    reading.result()
                    asking.result()
        os.close(fd)
        assert bytes(m.call("inode", "f").data)[BLOCK:] == written


def test_file_that_a_notification_lengthened_during_a_write_shows_no_zeros(
    mountpoint: Path,
) -> None:
    """The daemon stores a later page, and then reports the change of the others.

    On plain FUSE the INVAL_INODE drops page 0, and a READ brings the new bytes.
    """
    old, new = b"d" * 100, b"d" * 100 + b"n" * (3 * BLOCK - 100)
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
        make(m, "f", old)
        fd = os.open(m / "f", os.O_RDWR)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        assert os.pread(fd, BLOCK, 0) == old
        m.hold("write", "before")
        with running(os.pwrite, fd, b"ww", 0) as writing:
            m.wait_held()
            m.model.put("f", new)
            m.call("store", "f", 2 * BLOCK, new[2 * BLOCK :])
            m.call("inval_inode", "f")
            with running(os.pread, fd, BLOCK, 0) as reading:
                until(lambda: reading.done() or m.keeps_waiting(reading, 1))
                m.release()
                assert writing.result() == 2
                seen = reading.result()
        os.close(fd)
        assert b"\0" not in seen


@pytest.mark.parametrize("stores", [False, True], ids=["alone", "store_waits"])
def test_last_page_of_a_write_shows_no_zeros_before_the_reply_that_lengthened_the_file_drops_it(
    mountpoint: Path, stores: bool
) -> None:
    """The new size is a whole number of pages. The reply waits for the READ of page 0.

    A store that waits for the WRITE holds the page's lock almost always.
    """
    data = fill("d", BLOCK) + b"d" * 100
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m, contextlib.ExitStack() as calls:
        make(m, "f", data)
        fd = os.open(m / "f", os.O_RDWR)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        assert os.pread(fd, BLOCK, BLOCK) == b"d" * 100

        def store() -> None:
            with mmap.mmap(fd, len(data)) as view:
                view.madvise(mmap.MADV_RANDOM)
                view[BLOCK + 8 : BLOCK + 10] = b"ss"

        m.hold("write", "before")
        writing = calls.enter_context(running(os.pwrite, fd, b"ww", BLOCK))
        m.wait_held()
        m.hold("read", "before")
        filling = calls.enter_context(running(os.pread, fd, BLOCK, 0))
        m.wait_held(2)
        others: list[Call[Any]] = [filling]
        if stores:
            storing = calls.enter_context(running(store))
            until(lambda: storing.sleeps_in("efuse_page_mkwrite"))
            others.append(storing)
        m.model.put("f", data + b"n" * (BLOCK - 100))
        asking = calls.enter_context(running(force_stat, fd))
        until(lambda: asking.done() or m.keeps_waiting(asking, 2))
        reading = calls.enter_context(running(os.pread, fd, BLOCK, BLOCK))
        until(lambda: reading.done() or m.keeps_waiting(reading, 2))
        m.release()
        assert writing.result() == 2
        for call in (*others, asking):
            call.result()
        assert b"\0" not in reading.result()
        os.close(fd)


def test_page_that_a_write_takes_after_the_size_arrived_shows_no_zeros(mountpoint: Path) -> None:
    """The reply that lengthened the file still waits for the READ of page 0. FUSE fails here, too.

    Without the write(2) a read of page 1 shows the same zeros.
    """
    data = fill("d", BLOCK) + b"d" * 100
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
        make(m, "f", data)
        fd = os.open(m / "f", os.O_RDWR)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        assert os.pread(fd, BLOCK, BLOCK) == b"d" * 100
        m.hold("read", "before")
        with running(os.pread, fd, BLOCK, 0) as filling:
            m.wait_held()
            m.model.put("f", data + b"n" * (BLOCK - 100))
            with running(force_stat, fd) as asking:
                until(lambda: asking.done() or m.keeps_waiting(asking, 1))
                m.hold("write", "before")
                with running(os.pwrite, fd, b"ww", BLOCK) as writing:
                    until(lambda: m.connection.waiting == 2 or m.keeps_waiting(writing, 1))
                    with running(os.pread, fd, BLOCK, BLOCK) as reading:
                        until(
                            lambda: (
                                reading.done()
                                or m.keeps_waiting(reading, 1)
                                or m.keeps_waiting(reading, 2)
                            )
                        )
                        m.release()
                        m.release()
                        assert writing.result() == 2
                        filling.result()
                        asking.result()
                        seen = reading.result()
        os.close(fd)
        assert b"\0" not in seen
