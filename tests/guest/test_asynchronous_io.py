# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test asynchronous requests: io_submit(2), and a loop device with direct I/O."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.support.asynchronous import (
    ASYNC_DIO,
    PREAD,
    PWRITE,
    Asynchronous,
    asynchronously,
    half_a_buffer,
)
from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Mount, mounted, running
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.manual_daemon import until
from tests.guest.support.shell import run
from tests.guest.support.small_disk import small
from tests.guest.support.wire import FOPEN_DIRECT_IO, FOPEN_NOFLUSH


@pytest.mark.parametrize("opcode", [PREAD, PWRITE], ids=["read", "write"])
def test_asynchronous_request_that_a_path_carries_out_in_part_completes_once(
    mountpoint: Path, lower: Path, opcode: int
) -> None:
    """FUSE gets the rest. If it completed the request as well, the kernel would report that."""
    data = fill("b", 8 * BLOCK)
    path = backing(lower, data)
    with mounted(mountpoint, path="direct", generic_flags=ASYNC_DIO, **LONG) as m:
        make(m, "f", data)
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR | os.O_DIRECT)
        for _ in range(20):
            results = asynchronously(opcode, fd, half_a_buffer(), 3 * BLOCK, 0)
            part = 2 * BLOCK if opcode == PREAD else -errno.EIO
            assert results in ([part], [-errno.EFAULT])
        os.close(fd)
        expected = fill("b", 8 * BLOCK) if opcode == PREAD else b"w" * 2 * BLOCK + data[2 * BLOCK :]
        assert Path(path).read_bytes() == expected


@pytest.mark.parametrize("flags", [0, FOPEN_DIRECT_IO], ids=["cached", "direct_io"])
def test_append_sends_one_getattr_although_asynchronous_reads_complete_during_it(
    mountpoint: Path, flags: int
) -> None:
    """No byte of the file changes, but FUSE drops the reply with the size each time.

    As long as one asynchronous direct read of the file completes during each GETATTR, the append
    goes on asking, and holds the inode's lock.
    """
    rounds = 4
    with (
        mounted(
            mountpoint,
            consistency="exclusive",
            generic_flags=ASYNC_DIO,
            open_flags=FOPEN_NOFLUSH | flags,
            **LONG,
        ) as m,
        contextlib.ExitStack() as stack,
    ):
        data = fill("b", rounds * BLOCK)
        make(m, "f", data)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        direct = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        os.write(fd, b"one ")
        os.stat(m / "f")  # the reads below ask for nothing
        for _ in range(rounds):
            m.hold("read", "after")
        reads = Asynchronous(direct, rounds)
        m.wait_held(rounds)
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        writing = stack.enter_context(running(os.write, fd, b"two "))
        stack.callback(m.release)  # a killed writer waits for its answer
        m.wait_held(rounds + 1)
        asked = 1
        for left in reversed(range(rounds)):
            read_ = m.call("_held.pop", 0)
            m.call("_send", read_.answer)
            assert reads.wait() == BLOCK
            m.call("release_and_hold", "getattr", "after")
            until(lambda left=left: writing.done() or m.held() == left + 1)  # type: ignore[misc]
            if writing.done():
                break
            asked += 1
        m.release()
        assert writing.result() == 4
        assert bytes(m.call("inode", "f").data) == data + b"one two "
        reads.close()
        os.close(direct)
        os.close(fd)
    assert asked == 1, f"asked {asked} times: once more for each read"


def _leave(point: Path, room: int) -> None:
    """Fill a small file system up to *room* bytes."""
    with (point / "filler").open("wb", buffering=0) as filler:
        with contextlib.suppress(OSError):
            while filler.write(b"x" * 65536) == 65536:
                pass
        filler.truncate(os.fstat(filler.fileno()).st_size - room)
        os.fsync(filler.fileno())


@contextlib.contextmanager
def _nearly_full(
    mountpoint: Path, lower: Path, size: int, **options: int
) -> Iterator[tuple[Mount, str]]:
    """Map the file ``f`` of zeros to a backing file, and leave room for eight blocks below.

    :param size: of the file, in bytes.
    :returns: the mount, and the path of the backing file.
    """
    with small(lower) as point, mounted(mountpoint, path="direct", **LONG, **options) as m:
        path = backing(point, b"")
        os.truncate(path, size)
        _leave(point, 8 * BLOCK)
        make(m, "f", bytes(size))
        whole(m, path, write=True)
        yield m, path


@pytest.mark.parametrize("direct", ["on", "off"])
def test_loop_device_reports_a_write_that_a_path_carries_out_in_part(
    mountpoint: Path, lower: Path, direct: str
) -> None:
    """Without --direct-io the loop device of 6.12.117 writes synchronously: ki_complete is NULL.

    The device gets one request: of two, the second one would fail as a whole.
    """
    size = 2 << 20
    with (
        _nearly_full(mountpoint, lower, size, generic_flags=ASYNC_DIO) as (m, path),
        contextlib.ExitStack() as stack,
    ):
        loop = run("losetup", "-f", "--show", f"--direct-io={direct}", m / "f").stdout.strip()
        stack.callback(run, "losetup", "-d", loop)
        m.call("deny", "write", 0, errno.ENOSPC)
        written = fill("w", 16 * BLOCK)
        fd = os.open(loop, os.O_RDWR | os.O_DIRECT)
        try:
            with mmap.mmap(-1, len(written)) as buffer:
                buffer[:] = written
                reported = False
                try:
                    os.pwrite(fd, buffer, 0)
                except OSError:
                    reported = True
            kept = Path(path).read_bytes()[: len(written)] == written
        finally:
            os.close(fd)
            m.call("deny", "write", 0, 0)
        assert reported or kept, "an acknowledged write is lost"


def test_short_asynchronous_append_returns_the_number_of_bytes_that_it_appended(
    mountpoint: Path, lower: Path
) -> None:
    """The daemon would do the rest. io_uring asks for it after a short append, not after EIO."""
    with (
        small(lower) as point,
        mounted(
            mountpoint, consistency="exclusive", path="direct", generic_flags=ASYNC_DIO, **LONG
        ) as m,
    ):
        path = backing(point, b"one ")
        _leave(point, 512 << 10)
        make(m, "f", b"one ")
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        memory = mmap.mmap(-1, 1 << 20)
        memory[:] = b"w" * (1 << 20)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        results = asynchronously(PWRITE, fd, start, 1 << 20, 0)
        appended = os.stat(path).st_size - 4
        os.close(fd)
        assert 0 < appended < 1 << 20 and appended % BLOCK in range(BLOCK)
        assert results == [appended], f"{results}, but {appended} bytes are in the file"


def test_asynchronous_write_that_the_daemon_ends_short_fails(mountpoint: Path, lower: Path) -> None:
    """The backing file takes a part, the daemon the next one, and then it has no room either."""
    size = 2 << 20
    with _nearly_full(mountpoint, lower, size, generic_flags=ASYNC_DIO) as (m, path):
        fd = os.open(m / "f", os.O_WRONLY)
        memory = mmap.mmap(-1, size)
        memory[:] = b"w" * size
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        m.hold("write", "after")
        with running(asynchronously, PWRITE, fd, start, size, 0) as writing:
            m.wait_held()
            m.call("deny", "write", 0, errno.ENOSPC)
            m.release()
            assert writing.result() == [-errno.EIO]
        m.call("deny", "write", 0, 0)
        os.close(fd)
        assert Path(path).read_bytes().startswith(b"w")
        assert b"w" in bytes(m.call("inode", "f").data)


def test_splice_reports_the_bytes_that_a_path_has_written(mountpoint: Path, lower: Path) -> None:
    """The backing file takes a part, and the daemon has no room for the rest."""
    size = 1 << 20
    with _nearly_full(mountpoint, lower, size, open_flags=FOPEN_NOFLUSH) as (m, path):
        m.call("deny", "write", 0, errno.ENOSPC)
        fd = os.open(m / "f", os.O_WRONLY)
        out, in_ = os.pipe()
        os.write(in_, b"s" * 16 * BLOCK)
        moved = os.splice(out, fd, 16 * BLOCK, offset_dst=0)
        m.call("deny", "write", 0, 0)
        for each in (fd, out, in_):
            os.close(each)
        assert Path(path).read_bytes() == b"s" * moved + bytes(size - moved)
        assert moved
