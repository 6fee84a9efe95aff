# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test splice(2) and sendfile(2) into a file that the daemon mapped to a backing file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Call, mounted
from tests.guest.support.data_cache import path_count
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.small_disk import frozen

_DATA = fill("s", 4 * BLOCK)


def _splice(fd: int, path: Path) -> int:
    """Splice from a pipe, which stays locked meanwhile."""
    out, into = os.pipe()
    try:
        os.write(into, _DATA)
        return os.splice(out, fd, len(_DATA), offset_dst=0)
    finally:
        os.close(out)
        os.close(into)


def _sendfile(fd: int, path: Path) -> int:
    """Send from a file, which the kernel does by a pipe of its own."""
    path.write_bytes(_DATA)
    with path.open("rb") as source:
        return os.sendfile(fd, source.fileno(), 0, len(_DATA))


each_call = pytest.mark.parametrize("call", [_splice, _sendfile], ids=["splice", "sendfile"])


@each_call
def test_spliced_bytes_go_into_the_backing_file_without_the_daemon(
    mountpoint: Path, lower: Path, tmp_path: Path, call: Callable[[int, Path], int]
) -> None:
    path = backing(lower, fill("b", 8 * BLOCK))
    with mounted(mountpoint) as m:
        make(m, "f", fill("d", 8 * BLOCK))
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_WRONLY)
        m.log()
        done = path_count(m, "requests", "direct")
        assert call(fd, tmp_path / "source") == len(_DATA)
        assert path_count(m, "requests", "direct") > done
        assert "write" not in m.asked()
        os.close(fd)
        assert Path(path).read_bytes() == _DATA + fill("b", 8 * BLOCK)[len(_DATA) :]


@each_call
@pytest.mark.parametrize("dirty", [False, True], ids=["", "behind a dirty page"])
def test_splice_does_not_wait_below_until_the_file_system_there_is_thawed(
    mountpoint: Path, slow: Path, tmp_path: Path, call: Callable[[int, Path], int], dirty: bool
) -> None:
    """Another task may wait for the pipe, and keep that file system from being frozen.

    With a dirty page in the file, FUSE copies the bytes to pages and sends these.
    """
    path = backing(slow, fill("b", 8 * BLOCK))
    with mounted(mountpoint) as m:
        make(m, "f", fill("d", 8 * BLOCK))
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        with mmap.mmap(fd, 8 * BLOCK) as mapped:
            if dirty:
                mapped[7 * BLOCK :] = fill("m", BLOCK)
            with frozen(slow):
                m.log()
                # Nothing waits for its end before the thaw.
                assert Call(call, fd, tmp_path / "source").result() == len(_DATA)
                assert "write" in m.asked()
        os.close(fd)
        assert bytes(m.call("inode", "f").data[: len(_DATA)]) == _DATA
        assert Path(path).read_bytes()[: len(_DATA)] == fill("b", len(_DATA))
