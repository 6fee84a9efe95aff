# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test files that the kernel opened without the daemon, although the daemon keeps their locks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.guest.support.daemons import Call, Mount, eventually, mounted
from tests.guest.support.wire import FUSE_FLOCK_LOCKS


@contextmanager
def _opened_here(mountpoint: Path, **answers: object) -> Iterator[tuple[Mount, int]]:
    """Mount a file, and open it without the daemon."""
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("no_open", "no_flush"),
        **answers,  # type: ignore[arg-type]
    ) as m:
        m.model.create("f", b"data")
        for _ in range(2):
            os.close(os.open(m / "f", os.O_RDWR))
        with m.answered("open"):
            fd = os.open(m / "f", os.O_RDWR)
        yield m, fd


_F_OFD_SETLK = 37


def _lock_until_exit(path: str) -> None:
    """Take a lock that ends with the process."""
    fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)


@pytest.mark.parametrize("how", ["close", "exit", "dup"])
def test_close_of_a_file_with_a_flock_reaches_the_daemon(mountpoint: Path, how: str) -> None:
    with _opened_here(mountpoint, generic_flags=FUSE_FLOCK_LOCKS) as (m, fd):
        m.log()
        if how == "exit":
            Call(_lock_until_exit, m / "f").result()
            eventually(lambda: "release" in m.asked())
        fcntl.flock(fd, fcntl.LOCK_SH)
        if how == "dup":
            other = os.dup(fd)
            os.close(fd)
            assert "release" not in m.asked()
            fd = other
        os.close(fd)
        eventually(lambda: "release" in m.asked())


def test_close_of_a_file_with_an_ofd_lock_reaches_the_daemon(mountpoint: Path) -> None:
    """An OFD lock ends with the open file description, not with a process."""
    with _opened_here(mountpoint, locks=True) as (m, fd):
        m.log()
        with contextlib.suppress(OSError):  # The daemon may not implement the request.
            fcntl.fcntl(fd, _F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        os.close(fd)
        eventually(lambda: "release" in m.asked())


def test_close_of_a_file_without_a_lock_is_answered_in_the_kernel(mountpoint: Path) -> None:
    with _opened_here(mountpoint, generic_flags=FUSE_FLOCK_LOCKS) as (m, fd):
        before = m.count("release", "hits")
        os.close(fd)
        eventually(lambda: m.count("release", "hits") > before)


def test_flush_of_a_file_reaches_a_daemon_that_keeps_its_locks(mountpoint: Path) -> None:
    with _opened_here(mountpoint, locks=True) as (m, fd):
        fcntl.lockf(fd, fcntl.LOCK_EX)
        with m.passed("flush"):
            os.close(fd)


def _asked_to_open_and_list(m: Mount, path: str) -> set[str]:
    """Open a file and list its directory, and return the opcodes that reached the daemon."""
    m.log()
    os.close(os.open(path, os.O_RDWR))
    os.listdir(os.path.dirname(path))
    return set(m.asked()) & {"open", "opendir", "readdirplus"}


@pytest.mark.parametrize("handle", [7, 1 << 40, 0x7F00_0000_1000])
def test_handle_without_the_highest_bit_ends_no_open(mountpoint: Path, handle: int) -> None:
    """The handles look like a descriptor, a counter and a pointer: a nodeid could be the same."""
    with mounted(
        mountpoint, consistency="exclusive", declare=("no_open",), first_handle=handle
    ) as m:
        m.model.create("f", b"data")
        assert m.connection.no_open
        for _ in range(3):
            assert {"open", "opendir"} <= _asked_to_open_and_list(m, m / "f")
            assert not m.connection.no_open


def test_file_with_a_kept_handle_is_always_opened_by_the_daemon(mountpoint: Path) -> None:
    with mounted(
        mountpoint, consistency="exclusive", declare=("no_open",), first_handle=3 << 62
    ) as m:
        m.model.create("f", b"data")
        for _ in range(3):
            asked = _asked_to_open_and_list(m, m / "f")
            assert asked == {"open", "opendir", "readdirplus"}
        assert m.connection.no_open


def test_handle_with_the_highest_bit_lets_the_kernel_open_next(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive", declare=("no_open",)) as m:
        m.model.create("f", b"data")
        assert _asked_to_open_and_list(m, m / "f") == {"open", "opendir", "readdirplus"}
        assert _asked_to_open_and_list(m, m / "f") == set()
        assert m.connection.no_open


@pytest.mark.parametrize("handle", [1 << 40, 3 << 62])
def test_listing_with_positions_of_one_handle_is_not_cached(mountpoint: Path, handle: int) -> None:
    """The next reader would continue at another handle's position. Nothing is promised here."""
    with mounted(mountpoint, consistency="exclusive", first_handle=handle) as m:
        m.model.create("f", b"data")
        for _ in range(3):
            assert "readdirplus" in _asked_to_open_and_list(m, m / "f")
