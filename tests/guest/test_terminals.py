# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test isatty(3) on files of a daemon that does, or does not, implement IOCTL."""

from __future__ import annotations

import errno
import fcntl
import os
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.support.daemons import Mount, fails, mounted
from tests.guest.support.succession import recovering


def _ask(m: Mount, name: str = "f") -> None:
    """Ask whether a file or directory is a terminal: it is none."""
    fd = os.open(m / name, os.O_RDONLY)
    fails(errno.ENOTTY, fcntl.ioctl, fd, termios.TCGETS, bytes(64))
    os.close(fd)


def _asked(m: Mount, ask: Callable[[], None]) -> int:
    """Return how many IOCTLs reached the daemon."""
    m.log()
    ask()
    return m.asked().count("ioctl")


# libfuse sends the error of a file system as the result in a successful reply.
@pytest.mark.parametrize("answer", [(errno.ENOSYS, 0), (0, -errno.ENOSYS)])
@pytest.mark.parametrize("consistency", ["ttl", "cto", "exclusive"])
def test_daemon_without_ioctl_is_asked_once(
    mountpoint: Path, consistency: str, answer: tuple[int, int]
) -> None:
    with mounted(mountpoint, consistency=consistency, ioctl=answer) as m:
        m.model.create("f")
        m.model.create("g")
        m.model.mkdir("d")
        assert _asked(m, lambda: _ask(m)) == 1
        hits = m.count("ioctl", "hits")
        for name in ("f", "g", "d"):
            assert _asked(m, lambda name=name: _ask(m, name)) == 0
        assert m.count("ioctl", "hits") == hits + 3


@pytest.mark.parametrize("error", [errno.ENOTTY, errno.EIO, errno.EINVAL])
def test_other_error_is_not_remembered(mountpoint: Path, error: int) -> None:
    with mounted(mountpoint, ioctl=(error, 0)) as m:
        m.model.create("f")
        fd = os.open(m / "f", os.O_RDONLY)
        for _ in range(2):
            assert _asked(m, lambda: fails(error, fcntl.ioctl, fd, termios.TCGETS, bytes(64))) == 1
        os.close(fd)


def test_other_ioctl_still_reaches_the_daemon(mountpoint: Path) -> None:
    with mounted(mountpoint, ioctl=(errno.ENOSYS, 0)) as m:
        m.model.create("f")
        _ask(m)
        fd = os.open(m / "f", os.O_RDONLY)
        for _ in range(2):
            assert _asked(m, lambda: fails(errno.ENOTTY, fcntl.ioctl, fd, 0x7A01)) == 1
        assert _asked(m, lambda: _ask(m)) == 0
        os.close(fd)


def test_unimplemented_other_ioctl_says_nothing_about_terminals(mountpoint: Path) -> None:
    with mounted(mountpoint, ioctl=(errno.ENOSYS, 0)) as m:
        m.model.create("f")
        fd = os.open(m / "f", os.O_RDONLY)
        fails(errno.ENOTTY, fcntl.ioctl, fd, 0x7A01)
        assert _asked(m, lambda: _ask(m)) == 1
        os.close(fd)


def test_daemon_is_asked_each_time_in_strict_mode_and_without_programs(mountpoint: Path) -> None:
    with mounted(mountpoint, ioctl=(errno.ENOSYS, 0)) as m:
        m.model.create("f")
        _ask(m)
        m.connection.consistency = "strict"
        assert _asked(m, lambda: _ask(m)) == 1
        m.connection.consistency = "ttl"
        assert _asked(m, lambda: _ask(m)) == 0
        assert m.attachment
        m.attachment.close()
        m.attachment = None
        assert _asked(m, lambda: _ask(m)) == 1


def test_invalidate_ends_what_was_remembered(mountpoint: Path) -> None:
    with mounted(mountpoint, ioctl=(errno.ENOSYS, 0)) as m:
        m.model.create("f")
        _ask(m)
        m.connection.invalidate()
        assert _asked(m, lambda: _ask(m)) == 1
        assert _asked(m, lambda: _ask(m)) == 0


def test_successor_is_asked_although_the_dead_daemon_did_not_implement_it(
    mountpoint: Path,
) -> None:
    with recovering(mountpoint, attach=True, ioctl=(errno.ENOSYS, 0)) as m:
        m.model.create("f")
        _ask(m)
        assert _asked(m, lambda: _ask(m)) == 0
        m.replace()
        assert _asked(m, lambda: _ask(m)) == 1
        assert _asked(m, lambda: _ask(m)) == 0
