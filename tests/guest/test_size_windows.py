# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test changes of a file's size in windows that no request of the daemon opens.

A task is kept at a function of the module while the file changes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.guest.support.backing_files import backing, make
from tests.guest.support.daemons import Call, Mount, force_stat, mounted, running
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.manual_daemon import until
from tests.guest.support.suspension import Suspension
from tests.guest.support.wire import FOPEN_KEEP_CACHE, FOPEN_NOFLUSH, store

_FIRST = fill("b", 100)
_EXCLUSIVE: dict[str, Any] = {
    "consistency": "exclusive",
    # A notification then does not make the kernel ask how many names the file has, and its size.
    "declare": ("nodeid_per_file",),
    "open_flags": FOPEN_NOFLUSH,
    **LONG,
}


def _grow(m: Mount) -> None:
    m.model.put("f", bytes(m.call("inode", "f").data) + b"longer ")
    m.call("inval_attributes", "f")


def test_append_goes_to_the_end_after_a_notification_before_the_change_of_a_write_has_begun(
    mountpoint: Path,
) -> None:
    """The size was true when the WRITE was issued, and has ended before its change began."""
    with (
        mounted(mountpoint, **_EXCLUSIVE) as m,
        Suspension("efuse_size_begun") as window,
    ):
        make(m, "f", _FIRST)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        within = os.open(m / "f", os.O_WRONLY)
        os.write(fd, b"one ")
        assert window.cross(lambda: os.pwrite(within, b"x", 3), lambda: _grow(m))
        before = bytes(m.call("inode", "f").data)
        assert before == _FIRST[:3] + b"x" + _FIRST[4:] + b"one longer "
        os.write(fd, b"two")
        os.close(within)
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == before + b"two"


def test_append_goes_to_the_end_of_a_reply_that_fuse_has_not_taken_yet(mountpoint: Path) -> None:
    """The reply to another task has told the size; FUSE still has the old one.

    That task is where `efuse_send` calls a last function before it returns to FUSE.
    """
    with (
        mounted(mountpoint, **_EXCLUSIVE) as m,
        Suspension("efuse_part_callers") as window,
    ):
        make(m, "f", _FIRST)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"one ")
        _grow(m)
        assert window.cross(lambda: force_stat(fd), lambda: os.write(fd, b"two"))
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == _FIRST + b"one longer two"


def test_write_asks_the_daemon_about_an_end_announced_before_its_change_has_begun(
    mountpoint: Path, lower: Path
) -> None:
    """An extent of fixed length does not tell the end, and only the daemon can move it."""
    path = backing(lower, fill("d", BLOCK))
    with (
        mounted(mountpoint, **_EXCLUSIVE) as m,
        Suspension("efuse_size_begun") as window,
    ):
        make(m, "f", fill("d", BLOCK))
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=BLOCK, write=True)
        fd = os.open(m / "f", os.O_WRONLY)
        hits = m.count("write", "hits")
        os.pwrite(fd, b"w", 0)
        assert m.count("write", "hits") == hits + 1

        def cut() -> None:
            m.model.put("f", fill("d", 50))
            m.call("inval_attributes", "f")

        assert window.cross(lambda: os.pwrite(fd, b"w", 100), cut)
        data = bytes(m.call("inode", "f").data)
        os.close(fd)
        assert m.count("write", "hits") == hits + 1
        assert data == fill("d", 50).ljust(100, b"\0") + b"w"


def test_page_whose_write_begins_before_a_notification_lengthens_the_file_shows_no_zeros(
    mountpoint: Path,
) -> None:
    """Before STORE makes the file longer, a write(2) begins, which takes bytes of its last page.

    The times of the file are coarse: they do not tell FUSE that its pages are old.
    """
    end = 2 * BLOCK
    longer = b"d" * 100 + b"n" * (end - 100)
    with (
        mounted(mountpoint, open_flags=FOPEN_NOFLUSH | FOPEN_KEEP_CACHE, **LONG) as m,
        Suspension("efuse_pages_grow") as window,
    ):
        make(m, "f", b"d" * 100)
        fd, device = os.open(m / "f", os.O_RDWR), m.device()
        assert os.pread(fd, BLOCK, 0) == b"d" * 100
        times = os.fstat(fd)
        message = store(m.call("nodeid", "f"), end - 100, b"n" * 100)
        writing: list[Call[int]] = []

        def write() -> None:
            m.hold("write", "before")
            writing.append(Call(os.pwrite, fd, b"ww", 0))
            m.wait_held()
            m.model.put("f", longer)
            m.model.set_times("f", times.st_mtime_ns, times.st_ctime_ns)

        assert window.cross(lambda: os.write(device, message), write)
        with running(os.pread, fd, BLOCK, 0) as reading:
            until(lambda: reading.done() or m.keeps_waiting(reading, 1))
            m.release()
            assert writing[0].result() == 2
            seen = reading.result()
        assert os.fstat(fd).st_size == end
        os.close(device)
        os.close(fd)
        assert seen in (b"ww" + b"d" * 98, (b"ww" + longer[2:])[:BLOCK])
