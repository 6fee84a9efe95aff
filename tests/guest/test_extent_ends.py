# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test where a file ends that an extent of fixed length covers beyond its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make
from tests.guest.support.daemons import Mount, mounted
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.wire import FOPEN_NOFLUSH

_LENGTH = 10 * BLOCK
_MODES = pytest.mark.parametrize("mode", ["exclusive", "ttl"])


def _opened(m: Mount, path: str) -> int:
    """Map all of the file by an extent, and open the file."""
    make(m, "f", fill("d", _LENGTH))
    m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=_LENGTH, write=True)
    return os.open(m / "f", os.O_RDWR)


def _cut(m: Mount) -> None:
    """Let another program make the file shorter, and the daemon announce it."""
    m.model.put("f", fill("d", 50))
    m.call("inval_inode", "f")


@_MODES
def test_write_behind_an_announced_end_is_in_the_file(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    """FUSE still knows the larger size: only the daemon can make the file longer."""
    path = backing(lower, fill("d", _LENGTH))
    with mounted(mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        fd = _opened(m, path)
        _cut(m)
        assert os.pwrite(fd, b"w" * 100, 5 * BLOCK) == 100
        data = bytes(m.call("inode", "f").data)
        size = os.fstat(fd).st_size
        os.close(fd)
        assert size == 5 * BLOCK + 100
        assert data == fill("d", 50).ljust(5 * BLOCK, b"\0") + b"w" * 100


@_MODES
def test_read_ends_at_an_announced_end(mountpoint: Path, lower: Path, mode: str) -> None:
    path = backing(lower, fill("d", _LENGTH))
    with mounted(mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        fd = _opened(m, path)
        _cut(m)
        data = os.pread(fd, BLOCK, 0)
        os.close(fd)
        assert data == fill("d", 50)


@_MODES
def test_requests_within_the_end_go_to_the_extent_without_a_question(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    path = backing(lower, fill("d", _LENGTH))
    with mounted(mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        fd = _opened(m, path)
        os.pread(fd, 1, 0)
        asked = m.count("getattr", "requests")
        for n in range(8):
            with m.answered("write"):
                assert os.pwrite(fd, b"w" * 100, n * BLOCK) == 100
            with m.answered("read"):
                assert os.pread(fd, 100, n * BLOCK) == b"w" * 100
        os.close(fd)
        assert m.count("getattr", "requests") == asked
