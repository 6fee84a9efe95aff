# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test how long the daemon's size of a file counts in a write-back mount.

With write-back FUSE's own size does not tell the daemon's, and an extent of fixed length does not
tell where the file ends. A write(2) behind the end that the daemon knows must reach the daemon, and
a read(2) there must not return bytes of the backing file.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make
from tests.guest.support.daemons import Mount, birth_stat, mounted
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.wire import FOPEN_NOFLUSH, FUSE_WRITEBACK_CACHE

_DATA = fill("d", 10 * BLOCK)
_LEFT = _DATA[: 2 * BLOCK]
_NEW = b"w" * 100
_BEHIND = 5 * BLOCK
"""Behind the end of `_LEFT`, and within the extent."""
_TIMEOUT_S = 2.0
_LONG_S = 600.0


@contextlib.contextmanager
def _file(
    mountpoint: Path, lower: Path, mode: str, attr_timeout: float
) -> Iterator[tuple[Mount, int]]:
    """Yield a mount with the file ``f``, which an extent of fixed length covers, and a descriptor.

    The daemon has a nodeid for each name of a file.
    """
    path = backing(lower, _DATA)
    with mounted(
        mountpoint,
        consistency=mode,
        nodeid_per_name=True,
        statx=True,
        open_flags=FOPEN_NOFLUSH,
        generic_flags=FUSE_WRITEBACK_CACHE,
        entry_timeout=_LONG_S,
        attr_timeout=attr_timeout,
    ) as m:
        make(m, "f", _DATA)
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=len(_DATA), write=True)
        fd = os.open(m / "f", os.O_RDWR)
        try:
            yield m, fd
        finally:
            os.close(fd)


def _write(m: Mount, fd: int) -> None:
    assert os.pwrite(fd, _NEW, _BEHIND) == len(_NEW)
    os.fsync(fd)
    data = bytes(m.call("inode", "f").data)
    assert data[_BEHIND : _BEHIND + len(_NEW)] == _NEW


def _read(_m: Mount, fd: int) -> None:
    assert os.pread(fd, BLOCK, _BEHIND) in (b"", bytes(BLOCK))


def _extent_is_used(m: Mount, fd: int, data: bytes) -> None:
    """Check that the file is read past the daemon, which has told the size."""
    os.fstat(fd)
    m.log()
    assert os.pread(fd, len(_LEFT), 0) == data
    assert "read" not in m.asked()


_ACCESSES = pytest.mark.parametrize("access", [_write, _read])


@_ACCESSES
@pytest.mark.parametrize("how", ["statx", "readdirplus"])
def test_size_expires_with_its_own_timeout(
    mountpoint: Path,
    lower: Path,
    how: str,
    access: Callable[[Mount, int], None],
) -> None:
    """STATX and READDIRPLUS renew the timeout of FUSE's attributes, and FUSE keeps its size."""
    with _file(mountpoint, lower, "ttl", _TIMEOUT_S) as (m, fd):
        _extent_is_used(m, fd, _LEFT)
        m.model.put("f", _LEFT)
        _after_its_timeout(m, fd, how)
        access(m, fd)


@_ACCESSES
@pytest.mark.parametrize("how", ["statx", "readdirplus"])
def test_size_of_a_file_with_two_names_expires_with_its_own_timeout(
    mountpoint: Path,
    lower: Path,
    how: str,
    access: Callable[[Mount, int], None],
) -> None:
    """All changes come through this mount."""
    with _file(mountpoint, lower, "exclusive", _TIMEOUT_S) as (m, fd):
        os.link(m / "f", m / "g")
        _extent_is_used(m, fd, _LEFT)
        os.truncate(m / "g", len(_LEFT))
        _after_its_timeout(m, fd, how)
        access(m, fd)


def _after_its_timeout(m: Mount, fd: int, how: str) -> None:
    """Get attributes in another way as soon as the timeout of the size has ended."""
    threading.Event().wait(_TIMEOUT_S + 0.1)
    m.log()
    if how == "statx":
        birth_stat(fd)
    else:
        os.listdir(m.path)
    assert how in m.asked()


@_ACCESSES
def test_size_that_a_statx_has_voided_is_not_answered_from_a_map(
    mountpoint: Path, lower: Path, access: Callable[[Mount, int], None]
) -> None:
    """The attributes that the kernel learned before still have a timeout."""
    with _file(mountpoint, lower, "ttl", _LONG_S) as (m, fd):
        _extent_is_used(m, fd, _LEFT)
        m.model.put("f", _LEFT)
        birth_stat(fd)
        assert m.asked() == ["statx"]
        access(m, fd)


@pytest.mark.parametrize("how", ["statx", "readdirplus"])
def test_read_goes_to_the_extent_after_statx_or_a_listing_confirms_the_size(
    mountpoint: Path, lower: Path, how: str
) -> None:
    with _file(mountpoint, lower, "ttl", _LONG_S) as (m, fd):
        _extent_is_used(m, fd, _LEFT)
        assert os.pwrite(fd, _NEW, 0) == len(_NEW)
        if how == "statx":
            birth_stat(fd)
        else:
            os.listdir(m.path)
        asked = m.asked()
        assert how in asked and "write" not in asked
        assert os.pread(fd, len(_NEW), 0) == _NEW
        assert os.pread(fd, BLOCK, _BEHIND) == _DATA[_BEHIND : _BEHIND + BLOCK]
        assert "read" not in m.asked()


@_ACCESSES
@pytest.mark.parametrize("mode", ["ttl", "cto"])
def test_dropped_reply_does_not_restore_an_older_size(
    mountpoint: Path, lower: Path, mode: str, access: Callable[[Mount, int], None]
) -> None:
    """A reply to GETATTR arrives after that of a later GETATTR."""
    with _file(mountpoint, lower, mode, _LONG_S) as (m, fd):
        _extent_is_used(m, fd, _LEFT)
        m.call("inval_attributes", "f")
        with _older_reply(m, fd):
            m.model.put("f", _LEFT)
        access(m, fd)


@_ACCESSES
def test_dropped_reply_does_not_restore_an_older_size_of_a_file_with_two_names(
    mountpoint: Path, lower: Path, access: Callable[[Mount, int], None]
) -> None:
    """All changes come through this mount."""
    with _file(mountpoint, lower, "exclusive", _LONG_S) as (m, fd):
        os.link(m / "f", m / "g")
        _extent_is_used(m, fd, _LEFT)
        m.call("inval_attributes", "f")
        with _older_reply(m, fd):
            os.truncate(m / "g", len(_LEFT))
        access(m, fd)


@contextlib.contextmanager
def _older_reply(m: Mount, fd: int) -> Iterator[None]:
    """Change the file between two GETATTRs, and let the first one's reply arrive last."""
    m.hold("getattr", "after")
    with _in_thread(os.fstat, fd) as first:
        m.wait_held()
        yield
        os.fstat(fd)
        m.release()
        first.result()


@contextlib.contextmanager
def _in_thread(function: Callable[[int], object], fd: int) -> Iterator[Future[object]]:
    """Call a function in a thread: a process would flush the open file when it ends."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(function, fd)
