# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test what other tasks see and do while the daemon has a WRITE that goes through FUSE's pages."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Call, Mount, as_user, eventually, fails, mounted, running
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG, has_byte, random_view
from tests.guest.support.manual_daemon import DEADLINE_S, until
from tests.guest.support.wire import FOPEN_KEEP_CACHE, FOPEN_NOFLUSH

_KEEP = FOPEN_NOFLUSH | FOPEN_KEEP_CACHE
_MADV_PAGEOUT = 21
_FUSE_POSIX_ACL = 1 << 20
_LIST = b"system.posix_acl_access"
# Owner rw-, user 1000 ---, group rw-, mask rw-, others r--.
_DENIES = struct.pack("=I", 2) + b"".join(
    struct.pack("=HHi", *each)
    for each in [(1, 6, -1), (2, 0, 1000), (4, 6, -1), (16, 6, -1), (32, 4, -1)]
)
_modes = pytest.mark.parametrize("consistency", ["strict", "ttl", "cto"])


@contextlib.contextmanager
def _being_written(m: Mount, fd: int) -> Iterator[None]:
    """Let the daemon hold a WRITE of the first page, which the file has already."""
    assert os.pread(fd, BLOCK, 0)
    m.hold("write", "before")
    with running(os.pwrite, fd, fill("w", BLOCK), 0) as writing:
        m.wait_held()
        try:
            yield
        finally:
            m.release()
        assert writing.result() == BLOCK


# The daemon's attributes are not valid for any time, so FUSE asks for them at each use.


@_modes
def test_read_during_a_write_of_another_page_sees_a_new_mtime(
    mountpoint: Path, consistency: str
) -> None:
    """FUSE asks for the attributes at each read(2), and drops the pages if the mtime is new."""
    with mounted(mountpoint, consistency=consistency, open_flags=_KEEP) as m:
        make(m, "f", fill("d", 2 * BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        assert os.pread(fd, BLOCK, BLOCK) == fill("d", 2 * BLOCK)[BLOCK:]
        with _being_written(m, fd):
            m.model.put("f", fill("d", BLOCK) + fill("n", BLOCK))
            seen = os.pread(fd, BLOCK, BLOCK)
        os.close(fd)
        assert seen == fill("n", BLOCK)


@_modes
def test_read_during_a_write_sees_that_the_file_is_longer(
    mountpoint: Path, consistency: str
) -> None:
    with mounted(mountpoint, consistency=consistency, open_flags=_KEEP) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        with _being_written(m, fd):
            m.model.put("f", fill("d", BLOCK) + fill("n", BLOCK))
            seen = os.pread(fd, BLOCK, BLOCK)
            size = os.fstat(fd).st_size
        os.close(fd)
        assert seen == fill("n", BLOCK)
        assert size == 2 * BLOCK


@_modes
def test_read_during_a_write_sees_that_the_file_is_shorter(
    mountpoint: Path, consistency: str
) -> None:
    """The page of the read is absent, and is not one of those that are written."""
    with mounted(mountpoint, consistency=consistency, open_flags=_KEEP) as m:
        make(m, "f", fill("d", 2 * BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        with _being_written(m, fd):
            m.model.put("f", fill("d", BLOCK))
            seen = os.pread(fd, BLOCK, BLOCK)
        os.close(fd)
        assert seen == b""


@_modes
def test_read_of_a_page_that_is_being_written_sees_what_the_file_grew_by(
    mountpoint: Path, consistency: str
) -> None:
    """FUSE has the page with zeros behind the old end, and may not drop it during the WRITE."""
    with mounted(mountpoint, consistency=consistency, open_flags=_KEEP) as m:
        make(m, "f", b"d" * 100)
        fd = os.open(m / "f", os.O_RDWR)
        assert os.pread(fd, BLOCK, 0) == b"d" * 100
        m.hold("write", "before")
        with running(os.pwrite, fd, b"ww", 0) as writing:
            m.wait_held()
            m.model.put("f", b"d" * 100 + b"n" * 100)
            with running(os.pread, fd, BLOCK, 0) as reading:
                until(lambda: reading.done() or m.keeps_waiting(reading, 1))
                m.release()
                assert writing.result() == 2
                assert reading.result() == b"ww" + b"d" * 98 + b"n" * 100
        os.close(fd)


def test_notified_size_is_seen_during_a_write(mountpoint: Path) -> None:
    """In exclusive mode, the daemon tells of its own change."""
    with mounted(mountpoint, consistency="exclusive", open_flags=_KEEP, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        with _being_written(m, fd):
            m.model.put("f", fill("d", BLOCK) + fill("n", BLOCK))
            m.call("inval_inode", "f")
            seen = os.pread(fd, BLOCK, BLOCK)
        os.close(fd)
        assert seen == fill("n", BLOCK)


@_modes
def test_mode_that_denies_access_is_seen_during_a_write(mountpoint: Path, consistency: str) -> None:
    with mounted(mountpoint, consistency=consistency, open_flags=_KEEP) as m:
        make(m, "f", fill("d", BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        with _being_written(m, fd):
            m.model.set_mode("f", stat.S_IFREG | 0o600)
            fails(13, as_user, 1000, os.open, m / "f", os.O_RDONLY)
        os.close(fd)


@_modes
def test_access_that_neither_list_nor_mode_grants_is_denied_during_a_write(
    mountpoint: Path, consistency: str
) -> None:
    """The list goes, and the mode with it. The old mode without the list would grant access."""
    options = {"generic_flags": _FUSE_POSIX_ACL, "open_flags": _KEEP}
    with mounted(mountpoint, consistency=consistency, **options) as m:
        make(m, "f", fill("d", BLOCK))
        m.model.set_mode("f", stat.S_IFREG | 0o664)
        m.model.set_xattr("f", _LIST, _DENIES)
        fails(13, as_user, 1000, os.open, m / "f", os.O_RDONLY)
        fd = os.open(m / "f", os.O_RDWR)
        with _being_written(m, fd):
            m.model.set_xattr("f", _LIST, None)
            m.model.set_mode("f", stat.S_IFREG | 0o660)
            fails(13, as_user, 1000, os.open, m / "f", os.O_RDONLY)
        os.close(fd)


# An append that goes FUSE's own way because the file has a dirty page.


def test_append_during_a_write_goes_to_the_notified_end(mountpoint: Path, lower: Path) -> None:
    """The daemon makes the file longer. It has the WRITE of another page."""
    old = fill("d", 2 * BLOCK)
    path = backing(lower, old)
    options = {"consistency": "exclusive", "path": "daemon", "open_flags": _KEEP, **LONG}
    with mounted(mountpoint, **options) as m:
        make(m, "f", old)
        whole(m, path, write=True, length=BLOCK)
        fd, end = os.open(m / "f", os.O_RDWR), os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        with contextlib.ExitStack() as stack:
            appending: Call[int]
            with _being_written(m, fd):
                m.model.put("f", old + b"tail")
                m.call("inval_inode", "f")
                m.connection.forced_path = "auto"
                view = stack.enter_context(random_view(fd, 2))
                view[BLOCK : BLOCK + 1] = b"s"
                appending = stack.enter_context(running(os.write, end, b"appended"))
                until(lambda: m.keeps_waiting(appending, 1))
            assert appending.result() == 8
            view.flush()
        os.close(fd)
        os.close(end)
        expected = fill("w", BLOCK) + b"s" + old[BLOCK + 1 :] + b"tail" + b"appended"
        assert bytes(m.call("inode", "f").data)[BLOCK:] == expected[BLOCK:]


# Stores during a WRITE.


def test_store_to_another_page_does_not_wait_for_a_write(mountpoint: Path) -> None:
    """The pages are void, and other tasks read the file. Each read drops its pages."""

    def store(fd: int) -> None:
        with random_view(fd, 8) as view:
            view[6 * BLOCK : 6 * BLOCK + 1] = b"s"
            os.write(told, b"t")
            os.read(go, 1)

    def read() -> None:
        while True:
            os.pread(fd, BLOCK, 4 * BLOCK)

    stored, told = os.pipe()
    go, let = os.pipe()
    with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
        make(m, "f", fill("d", 8 * BLOCK))
        fd = os.open(m / "f", os.O_RDWR)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.set_blocking(stored, False)
        with contextlib.ExitStack() as stack:
            with _being_written(m, fd):
                m.call("inval_inode", "f")
                for _ in range(4):
                    stack.enter_context(running(read))
                storing = stack.enter_context(running(store, fd))
                eventually(lambda: has_byte(stored), "the store ends", deadline_s=DEADLINE_S)
            os.write(let, b"g")
            storing.result()
        os.close(fd)
    for number in (stored, told, go, let):
        os.close(number)


# Reclaim.


def test_reclaim_of_a_page_that_is_being_written_keeps_the_other_pages(mountpoint: Path) -> None:
    """A program asks for reclaim by MADV_PAGEOUT."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})
    try:
        with mounted(mountpoint, open_flags=_KEEP, **LONG) as m:
            make(m, "f", fill("d", 8 * BLOCK))
            fd = os.open(m / "f", os.O_RDWR)
            assert os.pread(fd, 8 * BLOCK, 0) == fill("d", 8 * BLOCK)
            with _being_written(m, fd), mmap.mmap(fd, BLOCK, prot=mmap.PROT_READ) as view:
                assert view[:1] == b"w"
                view.madvise(_MADV_PAGEOUT)
                m.log()
                seen = os.pread(fd, BLOCK, 4 * BLOCK)
                asked = m.asked()
            os.close(fd)
            assert seen == fill("d", 8 * BLOCK)[4 * BLOCK : 5 * BLOCK]
            assert "read" not in asked
    finally:
        os.sched_setaffinity(0, cpus)
