# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test WRITEs from dirty pages: they go to backing files, large ones in several parts."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Mount, mounted, unmount
from tests.guest.support.file_data import BLOCK, SIZE, fill
from tests.guest.support.scripted_daemon import Options
from tests.guest.support.small_disk import shut_down, small
from tests.guest.support.wire import FUSE_WRITEBACK_CACHE


def direct_writes(m: Mount) -> int:
    return m.connection.counts("paths/direct")["requests"]


@contextlib.contextmanager
def mapped(mountpoint: Path, path: str, flags: int = FUSE_WRITEBACK_CACHE) -> Iterator[Mount]:
    """Yield a mount of one file that is stored in the backing file *path*."""
    with mounted(mountpoint, consistency="exclusive", generic_flags=flags) as m:
        make(m, "f", Path(path).read_bytes())
        whole(m, path, write=True)
        m.log()
        yield m


def overwrite(path: str, data: bytes, offset: int = 0) -> None:
    """Write through FUSE's page cache, and wait until the data is in the backing file."""
    fd = os.open(path, os.O_RDWR)
    try:
        assert os.pwrite(fd, data, offset) == len(data)
        os.fsync(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("offset", [0, 1, BLOCK, 3 * BLOCK + 7])
def test_dirty_pages_go_to_the_backing_file(mountpoint: Path, lower: Path, offset: int) -> None:
    path = backing(lower, fill("b", 1 << 18))
    with mapped(mountpoint, path) as m:
        overwrite(m / "f", fill("w", 1 << 16), offset)
        expected = bytearray(fill("b", 1 << 18))
        expected[offset : offset + (1 << 16)] = fill("w", 1 << 16)
        assert Path(path).read_bytes() == expected
        assert not {"read", "write"} & set(m.asked())
        assert direct_writes(m) > 0


def test_dirty_pages_grow_the_backing_file(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, b"")
    with mapped(mountpoint, path) as m:
        for n in range(20):
            overwrite(m / "f", fill("w", SIZE), n * SIZE)
        assert Path(path).read_bytes() == 20 * fill("w", SIZE)
        assert "write" not in m.asked()


@pytest.mark.parametrize("flags", [0, FUSE_WRITEBACK_CACHE])
def test_stores_by_a_map_go_to_the_backing_file(mountpoint: Path, lower: Path, flags: int) -> None:
    path = backing(lower, fill("b", 64 * BLOCK))
    with mapped(mountpoint, path, flags) as m:
        with open(m / "f", "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            for n in range(0, 64, 3):
                view[n * BLOCK : n * BLOCK + 8] = b"mapped!!"
            view.flush()
        expected = bytearray(fill("b", 64 * BLOCK))
        for n in range(0, 64, 3):
            expected[n * BLOCK : n * BLOCK + 8] = b"mapped!!"
        assert Path(path).read_bytes() == expected
        assert "write" not in m.asked()


@pytest.mark.parametrize("flags", [0, FUSE_WRITEBACK_CACHE])
def test_fsync_of_a_mapped_file_reaches_the_daemon(
    mountpoint: Path, lower: Path, flags: int
) -> None:
    """The bytes are in the backing file, and the daemon makes them durable."""
    with mapped(mountpoint, backing(lower, fill("b")), flags) as m:
        overwrite(m / "f", b"w")
        assert "fsync" in m.asked()


def test_unmount_writes_back_all_dirty_pages(mountpoint: Path, lower: Path) -> None:
    """Neither data that close() waits for, nor dirty mapped memory, is lost."""
    path = backing(lower, bytes(1 << 23))
    with mapped(mountpoint, path) as m:
        fd = os.open(m / "f", os.O_RDWR)
        view = mmap.mmap(fd, 0)
        assert os.pwrite(fd, fill("w", 1 << 22), 0) == 1 << 22
        view[1 << 22 :] = fill("m", 1 << 22)
        os.close(fd)
        view.close()
    assert Path(path).read_bytes() == fill("w", 1 << 22) + fill("m", 1 << 22)


def test_fsync_fails_when_the_lower_file_system_is_full(mountpoint: Path, lower: Path) -> None:
    with small(lower) as point:
        (point / "b").touch()
        with mapped(mountpoint, str(point / "b")) as m:
            m.call("deny", "write", 0, errno.ENOSPC)
            with pytest.raises(OSError) as caught:
                overwrite(m / "f", fill("w", 1 << 23))
            assert caught.value.errno == errno.ENOSPC
            m.call("unmap_extents", "f")


def test_fsync_fails_when_only_a_part_fits(mountpoint: Path, lower: Path) -> None:
    """The lower file system is nearly full. FUSE ignores how much of a WRITE was done."""
    with small(lower) as point:
        (point / "b").touch()
        with (point / "filler").open("wb", buffering=0) as filler:
            with contextlib.suppress(OSError):
                while filler.write(bytes(BLOCK)):
                    pass
            # In newer kernels, ext4 takes 16 blocks as a whole or none of them.
            filler.truncate(filler.tell() - 20 * BLOCK)
            os.fsync(filler.fileno())
        with mapped(mountpoint, str(point / "b")) as m:
            m.call("deny", "write", 0, errno.ENOSPC)
            with pytest.raises(OSError) as caught:
                overwrite(m / "f", fill("w", 24 * BLOCK))
            assert caught.value.errno == errno.ENOSPC
            assert 0 < (point / "b").stat().st_size < 24 * BLOCK, "some of it did fit"
            m.call("unmap_extents", "f")


def test_fsync_fails_after_an_error_of_the_lower_file_system(mountpoint: Path, lower: Path) -> None:
    with small(lower) as point:
        (point / "b").write_bytes(fill("b"))
        with mapped(mountpoint, str(point / "b")) as m:
            overwrite(m / "f", b"fine")
            shut_down(point)
            m.call("deny", "write", 0, errno.EIO)
            with pytest.raises(OSError) as caught:
                overwrite(m / "f", b"lost")
            assert caught.value.errno == errno.EIO
            m.call("unmap_extents", "f")


def test_write_larger_than_the_daemon_takes_is_sent_in_parts(mountpoint: Path) -> None:
    size = 1 << 23
    with mounted(mountpoint, consistency="exclusive", generic_flags=FUSE_WRITEBACK_CACHE) as m:
        m.connection.max_request = size
        make(m, "f", bytes(size))
        m.log()
        before = m.count("write", "requests")
        overwrite(m / "f", fill("w", size))
        assert bytes(m.call("inode", "f").data) == fill("w", size)
        assert m.asked().count("write") > m.count("write", "requests") - before


def test_forced_path_daemon_sends_dirty_pages_to_the_daemon(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b"))
    with mapped(mountpoint, path) as m:
        m.connection.forced_path = "daemon"
        overwrite(m / "f", fill("w"))
        assert bytes(m.call("inode", "f").data) == fill("w")
        assert Path(path).read_bytes() == fill("b")


def test_fsync_and_close_end_after_abort(mountpoint: Path, lower: Path) -> None:
    m = Mount(mountpoint, Options(generic_flags=FUSE_WRITEBACK_CACHE), ("default_permissions",))
    try:
        make(m, "f", bytes(1 << 22))
        whole(m, backing(lower, bytes(1 << 22)), write=True)
        fd = os.open(m / "f", os.O_RDWR)
        os.pwrite(fd, fill("w", 1 << 22), 0)
        m.connection.abort()
        # Data that was not written by then is an error, here or there.
        for wait in (os.fsync, os.close):
            with contextlib.suppress(OSError):
                wait(fd)
        unmount(str(mountpoint))
    finally:
        m.close()
