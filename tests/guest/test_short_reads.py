# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test READs of a backing file that return fewer bytes than requested.

The file ends only where a read returns nothing. A signal, an error, or a missing page of the caller
also ends a read early, but must neither truncate the file nor be kept as its end.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Call, eventually, fails, mounted
from tests.guest.support.failing_disk import Disk, failing_disk
from tests.guest.support.file_data import BLOCK, fill, read, read_direct

SIZE = 64 * BLOCK
HALF = 16 * BLOCK
"""Half of the size of a read-ahead."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with failing_disk(tmp_path) as one:
        yield one


def spliced(path: str) -> bytes:
    """Return a file from FUSE's page cache, without a request for attributes."""
    fd = os.open(path, os.O_RDONLY)
    with tempfile.TemporaryFile(dir="/tmp") as out:
        at = 0
        while sent := os.sendfile(out.fileno(), fd, at, 1 << 20):
            at += sent
        os.close(fd)
        out.seek(0)
        return out.read()


def read_ahead(path: str) -> None:
    """Fill FUSE's page cache with a file, again and again."""
    fd = os.open(path, os.O_RDONLY)
    while True:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(fd, 0, 2 * HALF, os.POSIX_FADV_WILLNEED)


def cached_in_part(path: Path, size: int) -> None:
    """Keep only the first *size* bytes of a file in the lower page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    assert len(os.pread(fd, size, 0)) == size
    os.close(fd)


@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
@pytest.mark.parametrize("path", ["direct", "cache"])
def test_file_keeps_its_size_after_a_reader_was_killed(
    mountpoint: Path, disk: Disk, path: str, consistency: str
) -> None:
    data = fill("b", SIZE)
    lower = disk.root / "b"
    lower.write_bytes(data)
    with mounted(
        mountpoint, path=path, consistency=consistency, attr_timeout=60.0, entry_timeout=60.0
    ) as m:
        make(m, "f", data)
        whole(m, str(lower))
        cached_in_part(lower, HALF)
        disk.hold()
        try:
            reader = Call(read_ahead, m / "f")
            eventually(lambda: any("folio_wait" in name for name in reader.within()))
            reader.kill()
        finally:
            disk.resume()
        with m.answered("getattr", 0):
            assert spliced(m / "f") == data
        assert read(m / "f") == data
        assert os.stat(m / "f").st_size == SIZE
        assert "read" not in m.asked()


@pytest.mark.parametrize("path", ["direct", "cache"])
def test_error_at_a_later_page_is_not_taken_for_end_of_file(
    mountpoint: Path, disk: Disk, path: str
) -> None:
    data = fill("b", SIZE)
    lower = disk.root / "b"
    lower.write_bytes(data)
    with mounted(
        mountpoint, path=path, consistency="exclusive", attr_timeout=60.0, entry_timeout=60.0
    ) as m:
        make(m, "f", data)
        whole(m, str(lower))
        cached_in_part(lower, HALF)
        disk.fail(lower, 20)
        # The daemon has the bytes. Where the daemon fails as well, the caller gets the error.
        failed = m.count("read", "failed")
        assert spliced(m / "f") == data
        # In the cache path, the daemon is asked for a part, and the cache keeps it.
        if path == "direct":
            assert m.count("read", "failed") > failed
            m.call("deny", "read", 0, errno.EIO)
            fd = os.open(m / "f", os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            try:
                fails(errno.EIO, os.pread, fd, SIZE, 20 * BLOCK)
            finally:
                os.close(fd)
        assert os.stat(m / "f").st_size == SIZE


def test_direct_read_returns_the_bytes_before_an_error(mountpoint: Path, disk: Disk) -> None:
    data = fill("b", SIZE)
    lower = disk.root / "b"
    lower.write_bytes(data)
    with mounted(mountpoint, path="direct") as m:
        make(m, "f", data)
        whole(m, str(lower))
        cached_in_part(lower, HALF)
        disk.fail(lower, 20)
        m.call("deny", "read", 0, errno.EIO)
        got = read(m / "f", SIZE)
        assert HALF <= len(got) <= 20 * BLOCK
        assert got == data[: len(got)]


@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
def test_file_of_several_extents_ends_where_it_was_truncated(
    mountpoint: Path, lower: Path, consistency: str
) -> None:
    data = fill("b", 8 * BLOCK)
    path = backing(lower, data)
    with mounted(mountpoint, path="direct", consistency=consistency, attr_timeout=60.0) as m:
        make(m, "f", data)
        for offset in (0, 4 * BLOCK):
            extent = {"offset": offset, "length": 4 * BLOCK, "backing_offset": offset}
            m.call("map_extent", "f", path, os.O_RDONLY, **extent)
        with m.answered("read"):
            assert read_direct(m / "f", 8 * BLOCK) == data
        with open(m / "f", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            os.truncate(m / "f", 1000)
            m.log()
            for offset in (0, 999, 1000, BLOCK, 5 * BLOCK):
                expected = fill("b", 1000)[offset:]
                assert read(m / "f", 8 * BLOCK, offset) == expected
                assert read_direct(m / "f", 8 * BLOCK, offset) == expected
            assert spliced(m / "f") == fill("b", 1000)
            assert view[:BLOCK] == fill("b", 1000) + bytes(BLOCK - 1000)
        assert "read" not in m.asked()
        assert os.stat(m / "f").st_size == 1000


def test_file_that_grew_behind_the_mount_ends_where_the_daemon_reports(
    mountpoint: Path, lower: Path
) -> None:
    data = fill("b", 8 * BLOCK)
    with mounted(mountpoint, path="direct") as m:
        make(m, "f", data[:BLOCK])
        m.call("map_extent", "f", backing(lower, data), os.O_RDONLY, offset=0, length=8 * BLOCK)
        assert read(m / "f", 8 * BLOCK) == data[:BLOCK]
        m.model.put("f", data[: 2 * BLOCK])
        assert read(m / "f", 8 * BLOCK) == data[: 2 * BLOCK]
