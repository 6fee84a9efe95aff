# SPDX-License-Identifier: LGPL-2.1-or-later
"""Successors that number inodes and open files for themselves, at awkward moments."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.support.daemons import eventually, fails, force_stat, running
from tests.guest.support.succession import renumbering


@contextlib.contextmanager
def opened(path: str, flags: int = os.O_RDWR) -> Iterator[int]:
    """Open a file. Its close may fail, since its daemon may be gone."""
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


@contextlib.contextmanager
def dirty(fd: int) -> Iterator[None]:
    """Make the first page of a file dirty. At the end of its map, the page is written back."""
    with mmap.mmap(fd, mmap.PAGESIZE) as pages:
        pages[:4] = b"data"
        yield


# The end of the connection


def test_write_back_that_was_lost_ends_with_the_mount(mountpoint: Path) -> None:
    with renumbering(mountpoint) as m:
        m.model.create("file", bytes(mmap.PAGESIZE))
        m.hold("write", "before")
        with opened(m / "file") as fd, dirty(fd), running(os.fsync, fd) as call:
            m.wait_held()
            m.dies()
            m.connection.recovery = 0
            with pytest.raises(OSError):
                call.result()
        eventually(lambda: not m.connection.waiting, "the requests to end")


def test_write_back_that_a_successor_has_not_got_ends_with_the_mount(mountpoint: Path) -> None:
    with renumbering(mountpoint, consistency="exclusive") as m:
        for name in ("one", "two"):
            m.model.create(name, bytes(mmap.PAGESIZE))
        with opened(m / "one") as one, opened(m / "two") as two, dirty(one), dirty(two):
            state = m.dies()
            # Write-back begins, and no task waits for it.
            for fd in (one, two):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            m.follow(state, ("lookup", "before"))
            m.wait_held()
            # Another request has found the second file meanwhile, so its write-back could be sent.
            assert os.lseek(two, 0, os.SEEK_DATA) == 0
            m.connection.abort()
            eventually(lambda: not m.connection.waiting, "the requests to end")


# Identity


def test_directory_without_a_name_is_not_found(mountpoint: Path) -> None:
    with renumbering(mountpoint) as m:
        os.mkdir(m / "directory")
        with opened(m / "directory", os.O_RDONLY) as fd:
            os.rmdir(m / "directory")
            m.replace()
            with running(force_stat, fd) as call:
                fails(errno.ESTALE, call.result)


def test_directory_whose_name_was_invalidated_is_found_again(mountpoint: Path) -> None:
    with renumbering(mountpoint) as m:
        m.model.mkdir("pad")
        m.model.mkdir("directory")
        m.model.create("directory/file", b"data")
        with opened(m / "directory", os.O_RDONLY) as fd:
            m.call("inval_entry", "", b"directory")
            m.replace()
            with running(os.listdir, fd) as call:
                assert call.result() == ["file"]
