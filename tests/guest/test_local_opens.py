# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that the kernel opened without the daemon, which keeps their locks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.guest.daemons import Call, Mount, eventually, mounted
from tests.guest.service import FLOCK_LOCKS


@contextmanager
def _opened_here(mountpoint: Path, **answers: object) -> Iterator[tuple[Mount, int]]:
    """Mount a file, and open it without the daemon."""
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("handleless", "flush_free"),
        **answers,  # type: ignore[arg-type]
    ) as m:
        m.truth.create("f", b"data")
        for _ in range(2):
            os.close(os.open(m / "f", os.O_RDWR))
        with m.answered("open"):
            fd = os.open(m / "f", os.O_RDWR)
        yield m, fd


def _lock_anew(path: str) -> None:
    """Take a lock that ends with the process."""
    fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)


@pytest.mark.parametrize("how", ["close", "exit", "dup"])
def test_close_of_a_file_with_a_flock_reaches_the_daemon(mountpoint: Path, how: str) -> None:
    with _opened_here(mountpoint, generic_flags=FLOCK_LOCKS) as (m, fd):
        m.log()
        if how == "exit":
            Call(_lock_anew, m / "f").result()
            eventually(lambda: "release" in m.asked())
        fcntl.flock(fd, fcntl.LOCK_SH)
        if how == "dup":
            other = os.dup(fd)
            os.close(fd)
            assert "release" not in m.asked()
            fd = other
        os.close(fd)
        eventually(lambda: "release" in m.asked())


def test_close_of_a_file_without_a_lock_does_not(mountpoint: Path) -> None:
    with _opened_here(mountpoint, generic_flags=FLOCK_LOCKS) as (m, fd):
        before = m.count("release", "hits")
        os.close(fd)
        eventually(lambda: m.count("release", "hits") > before)


def test_flush_of_a_file_whose_locks_the_daemon_keeps_reaches_it(mountpoint: Path) -> None:
    with _opened_here(mountpoint, locks=True) as (m, fd):
        fcntl.lockf(fd, fcntl.LOCK_EX)
        with m.passed("flush"):
            os.close(fd)
