# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test which appends ask for the file's size in exclusive mode, and where appends go."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Mount, fails, mounted, running
from tests.guest.support.file_data import fill
from tests.guest.support.file_pages import LONG

_FIRST = fill("b", 100)


def _appender(m: Mount) -> int:
    """Return a descriptor that appends, after an append that may have asked for the size."""
    fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"one ")
    return fd


@pytest.mark.parametrize("mapped", [True, False])
def test_append_after_an_append_asks_for_nothing(
    mountpoint: Path, lower: Path, mapped: bool
) -> None:
    path = backing(lower, _FIRST)
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        make(m, "f", _FIRST)
        if mapped:
            whole(m, path, write=True)
        fd = _appender(m)
        asked, hits = m.count("getattr", "requests"), m.count("write", "hits")
        for n in range(20):
            os.write(fd, b"%02d" % n)
        assert m.count("getattr", "requests") == asked
        assert m.count("write", "hits") == hits + 20 * mapped
        os.close(fd)
        data = Path(path).read_bytes() if mapped else bytes(m.call("inode", "f").data)
        assert data == _FIRST + b"one " + b"".join(b"%02d" % n for n in range(20))
        if mapped:
            m.model.put("f", data)
        assert os.stat(m / "f").st_size == len(data)


def _announced(m: Mount) -> None:
    m.model.put("f", bytes(m.call("inode", "f").data) + b"longer ")
    m.call("inval_inode", "f")


def _invalidated(m: Mount) -> None:
    m.model.put("f", bytes(m.call("inode", "f").data) + b"longer ")
    m.connection.invalidate()


def _truncated(m: Mount) -> None:
    os.truncate(m / "f", 50)


def _grown(m: Mount) -> None:
    os.truncate(m / "f", 200)


def _written_elsewhere(m: Mount) -> None:
    fd = os.open(m / "f", os.O_WRONLY)
    os.pwrite(fd, b"behind ", 120)
    os.close(fd)


@pytest.mark.parametrize(
    "change", [_announced, _invalidated, _truncated, _grown, _written_elsewhere]
)
def test_append_goes_to_the_end_after_another_change(
    mountpoint: Path, change: Callable[[Mount], None]
) -> None:
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        make(m, "f", _FIRST)
        fd = _appender(m)
        os.write(fd, b"two ")
        change(m)
        before = bytes(m.call("inode", "f").data)
        os.write(fd, b"three")
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == before + b"three"


@pytest.mark.parametrize("point", ["before", "after"])
def test_append_goes_to_the_end_after_a_notification_during_another_append(
    mountpoint: Path, point: str
) -> None:
    """The notification comes while the daemon has the WRITE, which does not end after it."""
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        make(m, "f", _FIRST)
        fd = _appender(m)
        m.hold("write", point)
        with running(os.write, fd, b"two ") as writing:
            m.wait_held()
            longer = bytes(m.call("inode", "f").data).ljust(200, b"x")
            m.model.put("f", longer)
            m.call("inval_attributes", "f")
            m.release()
            assert writing.result() == 4
        before = bytes(m.call("inode", "f").data)
        assert len(before) == 200
        os.write(fd, b"three")
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == before + b"three"


def test_append_goes_to_the_end_after_a_notification_between_size_and_write(
    mountpoint: Path,
) -> None:
    """An append asks for the size. The notification comes before its WRITE is issued."""
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        make(m, "f", _FIRST)
        fd = _appender(m)
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        with running(os.write, fd, b"two ") as writing:
            m.wait_held()
            m.model.put("f", _FIRST.ljust(200, b"x"))
            m.call("inval_attributes", "f")
            m.release()
            assert writing.result() == 4
        before = bytes(m.call("inode", "f").data)
        assert len(before) == 200
        os.write(fd, b"three")
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == before + b"three"


def test_append_goes_to_the_end_after_a_write_that_failed(mountpoint: Path) -> None:
    """The daemon may have written bytes before it failed."""
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        make(m, "f", _FIRST)
        fd = _appender(m)
        m.call("deny", "write", 0, errno.EIO)
        fails(errno.EIO, os.write, fd, b"two ")
        m.call("deny", "write", 0, 0)
        before = bytes(m.call("inode", "f").data) + b"tw"
        m.model.put("f", before)
        os.write(fd, b"three")
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == before + b"three"
