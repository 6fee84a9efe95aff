# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test where a file with extents of fixed length ends in a write-back mount.

FUSE's size is that which the file will have, and the daemon learns of it by the WRITEs.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guest.support.backing_files import backing, make
from tests.guest.support.daemons import Mount, eventually, force_stat, mounted
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.wire import FOPEN_NOFLUSH, FUSE_WRITEBACK_CACHE

_LENGTH = 10 * BLOCK
_END = fill("d", 50)
_NO_TIMEOUT = {"entry_timeout": 0.0, "attr_timeout": 0.0}
_WRITE_BACK = {"generic_flags": FUSE_WRITEBACK_CACHE}
_MODES = pytest.mark.parametrize("mode", ["ttl", "exclusive"])


@contextlib.contextmanager
def _file(
    mountpoint: Path, path: str, mode: str, data: bytes = _END, **options: Any
) -> Iterator[tuple[Mount, int]]:
    """Mount a file, which an extent of fixed length covers, also behind its end."""
    chosen = {"open_flags": FOPEN_NOFLUSH, **_WRITE_BACK, **LONG, **options}
    with mounted(mountpoint, consistency=mode, **chosen) as m:
        make(m, "f", data)
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=_LENGTH, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        yield m, fd
        os.close(fd)


@_MODES
@pytest.mark.parametrize("how", ["write", "append", "truncate"])
def test_write_behind_the_end_is_in_the_file_after_write_back(
    mountpoint: Path, lower: Path, mode: str, how: str
) -> None:
    path = backing(lower, _END.ljust(_LENGTH, b"\0"))
    with _file(mountpoint, path, mode) as (m, fd):
        at = 5 * BLOCK
        if how == "append":
            at = len(_END)
            end = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
            assert os.write(end, b"w" * 100) == 100
            os.fsync(end)
            os.close(end)
        else:
            if how == "truncate":
                os.ftruncate(fd, at)
            assert os.pwrite(fd, b"w" * 100, at) == 100
            os.fsync(fd)
        assert os.fstat(fd).st_size == at + 100
        data = bytes(m.call("inode", "f").data)
        assert (len(data), data[at:]) == (at + 100, b"w" * 100)


def test_write_behind_the_end_is_shown_after_the_inode_was_forgotten(
    mountpoint: Path, lower: Path
) -> None:
    """The extent is mapped again when the file is looked up again, as a daemon would do."""
    path = backing(lower, _END.ljust(_LENGTH, b"\0"))
    with mounted(
        mountpoint, consistency="exclusive", open_flags=FOPEN_NOFLUSH, **_WRITE_BACK, **LONG
    ) as m:
        make(m, "f", _END)
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=_LENGTH, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        assert os.pwrite(fd, b"w" * 100, 5 * BLOCK) == 100
        os.fsync(fd)
        os.close(fd)
        eventually(m.balanced)
        size = os.stat(m / "f").st_size
        assert size == 5 * BLOCK + 100


@pytest.mark.parametrize("how", ["stat", "force", "after fsync", "list"])
@_MODES
def test_write_beyond_eof_is_in_the_file_if_attributes_arrive_before_write_back(
    mountpoint: Path, lower: Path, mode: str, how: str
) -> None:
    """Attributes that come while pages are dirty show FUSE's size in place of the daemon's."""
    path = backing(lower, _END.ljust(_LENGTH, b"\0"))
    timeouts = _NO_TIMEOUT if how == "stat" else LONG
    with _file(mountpoint, path, mode, **timeouts) as (m, fd):
        at = 5 * BLOCK
        if how == "after fsync":
            assert os.pwrite(fd, b"v" * 100, BLOCK) == 100
            os.fsync(fd)
        assert os.pwrite(fd, b"w" * 100, at) == 100
        if how == "force":
            force_stat(m / "f")
        elif how == "list":
            os.listdir(m.path)
        else:
            os.fstat(fd)
        os.fsync(fd)
        assert os.fstat(fd).st_size == at + 100
        data = bytes(m.call("inode", "f").data)
        assert (len(data), data[at:]) == (at + 100, b"w" * 100)


@pytest.mark.parametrize("how", ["read", "map"])
@_MODES
def test_hole_before_a_dirty_page_reads_as_zeros_if_attributes_arrive_before_write_back(
    mountpoint: Path, lower: Path, mode: str, how: str
) -> None:
    path = backing(lower, _END + b"F" * (_LENGTH - len(_END)))
    with _file(mountpoint, path, mode) as (m, fd):
        assert os.pwrite(fd, b"w" * BLOCK, 5 * BLOCK) == BLOCK
        force_stat(m / "f")
        if how == "read":
            seen = os.pread(fd, BLOCK, 2 * BLOCK)
        else:
            with mmap.mmap(fd, 6 * BLOCK, prot=mmap.PROT_READ) as view:
                seen = view[2 * BLOCK : 3 * BLOCK]
        assert seen == bytes(BLOCK)


@_MODES
def test_write_behind_an_announced_end_is_in_the_file(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    """The daemon has cut the file, and has told of it. FUSE keeps its size, and writes pages."""
    data = fill("d", _LENGTH)
    with _file(mountpoint, backing(lower, data), mode, data) as (m, fd):
        m.model.put("f", _END)
        m.call("inval_inode", "f")
        os.fstat(fd)
        assert os.pwrite(fd, b"w" * 100, 5 * BLOCK) == 100
        os.fsync(fd)
        assert bytes(m.call("inode", "f").data)[5 * BLOCK :] == (b"w" * 100).ljust(BLOCK, b"\0")


@pytest.mark.parametrize("write_back", [False, True], ids=["through", "back"])
@pytest.mark.parametrize("how", ["read", "map"])
@_MODES
def test_read_of_a_whole_file_goes_to_its_extent(
    mountpoint: Path, lower: Path, mode: str, how: str, write_back: bool
) -> None:
    """The reader asks for more than the file has, or for all of its last page."""
    data = fill("d", _LENGTH - 1000)
    path = backing(lower, data.ljust(_LENGTH, b"\0"))
    options = _WRITE_BACK if write_back else {"generic_flags": 0}
    with _file(mountpoint, path, mode, data, **options) as (m, fd):
        os.fstat(fd)
        m.log()
        if how == "read":
            seen = os.pread(fd, 2 * _LENGTH, 0)
        else:
            with mmap.mmap(fd, len(data), prot=mmap.PROT_READ) as view:
                seen = view[:]
        assert seen == data
        assert "read" not in m.asked()


@pytest.mark.parametrize("write_back", [False, True], ids=["through", "back"])
@pytest.mark.parametrize("end", ["fsync", "close"])
@_MODES
def test_extent_is_used_again_after_a_write_has_ended(
    mountpoint: Path, lower: Path, mode: str, end: str, write_back: bool
) -> None:
    data = fill("d", _LENGTH)
    options = _WRITE_BACK if write_back else {"generic_flags": 0}
    with _file(mountpoint, backing(lower, data), mode, data, **options) as (m, fd):
        other = os.open(m / "f", os.O_RDWR)
        assert os.pwrite(other, b"w" * BLOCK, BLOCK) == BLOCK
        if end == "fsync":
            os.fsync(other)
        os.close(other)
        eventually(lambda: m.call("handles") == 1)
        m.log()
        for n in range(4):
            assert len(os.pread(fd, BLOCK, n * BLOCK)) == BLOCK
            assert os.pwrite(fd, b"x" * BLOCK, n * BLOCK) == BLOCK
        os.fsync(fd)
        assert not {"read", "write"} & set(m.asked())


@_MODES
def test_extent_to_the_end_of_the_file_takes_all_requests_with_write_back(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    data = fill("d", _LENGTH - 1000)
    path = backing(lower, data)
    with mounted(
        mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **_WRITE_BACK, **LONG
    ) as m:
        make(m, "f", data)
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        end = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        m.log()
        assert os.pread(fd, 2 * _LENGTH, 0) == data
        assert os.write(end, b"a" * 100) == 100
        assert os.pwrite(fd, b"w" * 100, 20 * BLOCK) == 100
        os.fsync(fd)
        assert not {"read", "write"} & set(m.asked())
        expected = (data + b"a" * 100).ljust(20 * BLOCK, b"\0") + b"w" * 100
        assert Path(path).read_bytes() == expected
        os.close(end)
        os.close(fd)


@pytest.mark.parametrize("write_back", [False, True], ids=["through", "back"])
@_MODES
def test_rest_of_a_partly_replaced_extent_takes_reads_and_writes_within_the_file(
    mountpoint: Path, lower: Path, mode: str, write_back: bool
) -> None:
    data = fill("d", _LENGTH)
    path, other = backing(lower, data), backing(lower, fill("o", _LENGTH), "other")
    options = _WRITE_BACK if write_back else {"generic_flags": 0}
    with mounted(mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **options, **LONG) as m:
        make(m, "f", data)
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, write=True)
        m.call("map_extent", "f", other, os.O_RDWR, offset=0, length=BLOCK, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        os.fstat(fd)
        m.log()
        assert os.pread(fd, BLOCK, 0) == fill("o", BLOCK)
        assert os.pread(fd, BLOCK, 5 * BLOCK) == data[5 * BLOCK : 6 * BLOCK]
        assert os.pwrite(fd, b"w" * BLOCK, 6 * BLOCK) == BLOCK
        os.fsync(fd)
        assert not {"read", "write"} & set(m.asked())
        assert Path(path).read_bytes()[6 * BLOCK : 7 * BLOCK] == b"w" * BLOCK
        os.close(fd)
