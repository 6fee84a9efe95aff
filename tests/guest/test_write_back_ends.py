# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test where a file with extents of fixed length ends in a write-back mount.

FUSE's size is that which the file will have, and the daemon learns of it by the WRITEs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make
from tests.guest.support.daemons import Mount, eventually, mounted
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.wire import FOPEN_NOFLUSH, FUSE_WRITEBACK_CACHE

_LENGTH = 10 * BLOCK
_END = fill("d", 50)

_WRITE_BACK = {"generic_flags": FUSE_WRITEBACK_CACHE}


@contextlib.contextmanager
def _write_back(mountpoint: Path, path: str, mode: str) -> Iterator[tuple[Mount, int]]:
    """Mount a file of 50 bytes with write-back, which an extent covers beyond its end."""
    with mounted(
        mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **_WRITE_BACK, **LONG
    ) as m:
        make(m, "f", _END)
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=_LENGTH, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        yield m, fd
        os.close(fd)


@pytest.mark.parametrize("mode", ["ttl", "exclusive"])
@pytest.mark.parametrize("how", ["write", "append", "truncate"])
def test_write_behind_the_end_is_in_the_file_after_write_back(
    mountpoint: Path, lower: Path, mode: str, how: str
) -> None:
    path = backing(lower, _END.ljust(_LENGTH, b"\0"))
    with _write_back(mountpoint, path, mode) as (m, fd):
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


@pytest.mark.parametrize("mode", ["ttl", "exclusive"])
def test_write_within_the_end_goes_to_the_extent_with_write_back(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    data = fill("d", _LENGTH)
    path = backing(lower, data)
    with mounted(
        mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **_WRITE_BACK, **LONG
    ) as m:
        make(m, "f", data)
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=_LENGTH, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        m.log()
        assert os.pwrite(fd, b"w" * BLOCK, 5 * BLOCK) == BLOCK
        os.fsync(fd)
        assert "write" not in m.asked()
        assert Path(path).read_bytes() == data[: 5 * BLOCK] + b"w" * BLOCK + data[6 * BLOCK :]
        os.close(fd)
