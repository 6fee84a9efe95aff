# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that no write waits in the kernel until the file system below is thawed.

Its caller, or the next one, has locks for which others may wait that keep that file system from
being frozen.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Call, Mount, eventually, mounted, some_task_waits_in
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.overlays import overlaid
from tests.guest.support.small_disk import frozen
from tests.guest.support.splices import DATA, sendfile, splice, spliced
from tests.guest.support.wire import FOPEN_NOFLUSH


def _opened(m: Mount, path: str) -> int:
    """Map a new file ``f`` to a backing file, and open it."""
    make(m, "f", fill("d", 8 * BLOCK))
    whole(m, path, write=True)
    return os.open(m / "f", os.O_RDWR)


def _result_of(call: Callable[[int, Path], int], fd: int, path: Path) -> int:
    """Call in another process, which must end before the lower file system is thawed."""
    made = Call(call, fd, path)
    eventually(made.done, "it ends", deadline_s=60)
    return made.result()


def _check_that_the_daemon_writes(
    m: Mount, point: Path, call: Callable[[int, Path], int], fd: int, path: Path
) -> None:
    """Write `DATA` while the lower file system is frozen."""
    with frozen(point):
        m.log()
        assert _result_of(call, fd, path) == len(DATA)
        assert "write" in m.asked()
    assert bytes(m.call("inode", "f").data[: len(DATA)]) == DATA


def _written(fd: int, path: Path) -> int:
    return os.pwrite(fd, DATA, 0)


def _other_written(fd: int, path: Path) -> int:
    return os.pwrite(fd, fill("o", len(DATA)), 0)


def _stored(fd: int, path: Path) -> int:
    """Store by a map, and write the pages back."""
    with mmap.mmap(fd, len(DATA)) as mapped:
        mapped[:] = DATA
        mapped.flush()
    return len(DATA)


@pytest.mark.parametrize("dirty", [False, True], ids=["", "behind a dirty page"])
@pytest.mark.parametrize(
    "call", [splice, sendfile, _written, _stored], ids=["splice", "sendfile", "write", "map"]
)
def test_write_does_not_wait_in_the_kernel_for_a_frozen_lower_file_system(
    mountpoint: Path, slow: Path, tmp_path: Path, call: Callable[[int, Path], int], dirty: bool
) -> None:
    """With a dirty page in the file, FUSE copies the bytes to pages and sends these."""
    path = backing(slow, fill("b", 8 * BLOCK))
    with mounted(mountpoint) as m:
        fd = _opened(m, path)
        with mmap.mmap(fd, 8 * BLOCK) as mapped:
            if dirty:
                mapped[7 * BLOCK :] = fill("m", BLOCK)
            _check_that_the_daemon_writes(m, slow, call, fd, tmp_path / "source")
        os.close(fd)
        assert Path(path).read_bytes()[: len(DATA)] == fill("b", len(DATA))


@pytest.mark.parametrize("call", [splice, _written], ids=["splice", "write"])
def test_write_does_not_wait_in_the_kernel_for_a_frozen_file_system_below_an_overlay(
    mountpoint: Path, slow: Path, tmp_path: Path, call: Callable[[int, Path], int]
) -> None:
    with overlaid(slow) as both, mounted(mountpoint, stack_depth=2) as m:
        path = backing(both, fill("b", 8 * BLOCK))
        fd = _opened(m, path)
        _check_that_the_daemon_writes(m, slow, call, fd, tmp_path / "source")
        os.close(fd)


def test_write_to_two_file_systems_is_not_begun_if_the_second_one_is_frozen(
    mountpoint: Path, lower: Path, slow: Path, tmp_path: Path
) -> None:
    first, second = backing(lower, bytes(8 * BLOCK), "first"), backing(slow, bytes(8 * BLOCK))
    with mounted(mountpoint) as m:
        make(m, "f", fill("d", 8 * BLOCK))
        m.call("map_extent", "f", first, os.O_RDWR, offset=0, length=2 * BLOCK, write=True)
        m.call("map_extent", "f", second, os.O_RDWR, offset=2 * BLOCK, length=6 * BLOCK, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        m.log()
        assert _written(fd, tmp_path) == len(DATA)
        assert "write" not in m.asked()
        assert Path(first).read_bytes() == DATA[: 2 * BLOCK] + bytes(6 * BLOCK)
        assert Path(second).read_bytes() == DATA[2 * BLOCK :] + bytes(6 * BLOCK)
        with frozen(slow):
            assert _result_of(_other_written, fd, tmp_path) == len(DATA)
        os.close(fd)
        assert (
            bytes(m.call("inode", "f").data)
            == fill("o", len(DATA)) + fill("d", 8 * BLOCK)[len(DATA) :]
        )
        assert Path(first).read_bytes() == DATA[: 2 * BLOCK] + bytes(6 * BLOCK)
        assert Path(second).read_bytes() == DATA[2 * BLOCK :] + bytes(6 * BLOCK)


def _start_write_back(fd: int, length: int) -> None:
    start, size = ctypes.c_int64(0), ctypes.c_int64(length)
    assert ctypes.CDLL(None).sync_file_range(fd, start, size, 2) == 0  # SYNC_FILE_RANGE_WRITE


def test_splice_does_not_wait_for_write_back_to_a_frozen_file_system(
    mountpoint: Path, slow: Path, tmp_path: Path
) -> None:
    path = backing(slow, fill("b", 8 * BLOCK))
    with mounted(mountpoint) as m:
        fd = _opened(m, path)
        with mmap.mmap(fd, 8 * BLOCK) as mapped, frozen(slow):
            mapped[:BLOCK] = fill("m", BLOCK)
            _start_write_back(fd, BLOCK)
            assert _result_of(splice, fd, tmp_path / "source") == len(DATA)
        os.close(fd)
        assert bytes(m.call("inode", "f").data[: len(DATA)]) == DATA


def _written_from(path: str, buffer: mmap.mmap) -> int:
    return os.pwrite(os.open(path, os.O_RDWR), memoryview(buffer)[: len(DATA)], 0)


def _frozen_and_thawed(point: Path) -> int:
    with frozen(point):
        return 1


def test_freeze_succeeds_while_writers_below_and_above_share_a_pipe(
    mountpoint: Path, slow: Path
) -> None:
    """A circle: the file's lock, the pipe's lock, and the freeze of the lower file system."""
    path, other = backing(slow, fill("b", 8 * BLOCK)), backing(slow, bytes(8 * BLOCK), "other")
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH) as m:
        make(m, "g", DATA)
        fd, lower = _opened(m, path), os.open(other, os.O_RDWR)
        out, into = os.pipe()
        os.write(into, DATA)
        g = os.open(m / "g", os.O_RDONLY)
        buffer = mmap.mmap(g, len(DATA), access=mmap.ACCESS_READ)
        m.hold("read", "after")
        writer = Call(_written_from, m / "f", buffer)
        m.wait_held()
        above = Call(spliced, out, fd)
        eventually(lambda: "iter_file_splice_write" in above.within(), "it waits for the writer")
        below = Call(spliced, out, lower)
        eventually(lambda: "iter_file_splice_write" in below.within(), "it waits for the pipe")
        freezer = Call(_frozen_and_thawed, slow)
        eventually(lambda: some_task_waits_in("freeze_super"), "it waits for the splice below")
        m.release()
        assert writer.result() == above.result() == len(DATA)
        os.write(into, DATA)
        assert below.result() == len(DATA)
        assert freezer.result() == 1
        assert Path(other).read_bytes()[: len(DATA)] == DATA
        buffer.close()
        for number in (fd, g, lower, out, into):
            os.close(number)
