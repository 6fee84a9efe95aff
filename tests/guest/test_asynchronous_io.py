# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test asynchronous requests: io_submit(2), and a loop device with direct I/O."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import struct
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Mount, mounted, running
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.manual_daemon import until
from tests.guest.support.shell import run
from tests.guest.support.small_disk import small
from tests.guest.support.wire import FOPEN_DIRECT_IO, FOPEN_NOFLUSH

_ASYNC_DIO = 1 << 15
_PREAD, _PWRITE = 0, 1
_NO_ACCESS = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_ssize_t
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}


def _half_a_buffer() -> int:
    """Return the address of two pages that are in memory, before one without any access."""
    size = ctypes.c_size_t(3 * BLOCK)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = int(_libc.mmap(ctypes.c_size_t(0), size, _NO_ACCESS, flags, -1, ctypes.c_long(0)))
    both = mmap.PROT_READ | mmap.PROT_WRITE
    assert not _libc.mprotect(ctypes.c_size_t(start), ctypes.c_size_t(2 * BLOCK), both)
    ctypes.memset(start, ord("w"), 2 * BLOCK)
    return start


def _asynchronously(opcode: int, fd: int, address: int, size: int, offset: int) -> list[int]:
    """Read or write by io_submit(2); return the results of all events."""
    setup, destroy, get, submit = map(ctypes.c_long, _NUMBERS[platform.machine()])
    context = ctypes.c_ulong(0)
    assert not _libc.syscall(setup, ctypes.c_long(8), ctypes.byref(context))
    raw = struct.pack("=QIiHhIQQqQII", 1, 0, 0, opcode, 0, fd, address, size, offset, 0, 0, 0)
    iocb = ctypes.create_string_buffer(raw, 64)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(iocb))
    assert _libc.syscall(submit, context, ctypes.c_long(1), pointers) == 1
    events = ctypes.create_string_buffer(8 * 32)
    wait = struct.pack("=qq", 2, 0)
    number = _libc.syscall(get, context, ctypes.c_long(1), ctypes.c_long(8), events, wait)
    assert not _libc.syscall(destroy, context)
    return [struct.unpack_from("=QQqq", events, 32 * n)[2] for n in range(number)]


class _Asynchronous:
    """Reads that are in flight, each of one block, into memory of their own."""

    def __init__(self, fd: int, blocks: int) -> None:
        setup, self._destroy, self._get, submit = map(ctypes.c_long, _NUMBERS[platform.machine()])
        self._context = ctypes.c_ulong(0)
        assert not _libc.syscall(setup, ctypes.c_long(32), ctypes.byref(self._context))
        self._memory = mmap.mmap(-1, blocks * BLOCK)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._iocbs = []
        for n in range(blocks):
            raw = struct.pack(
                "=QIiHhIQQqQII",
                n, 0, 0, _PREAD, 0, fd, start + n * BLOCK, BLOCK, n * BLOCK, 0, 0, 0,
            )  # fmt: skip
            iocb = ctypes.create_string_buffer(raw, 64)
            self._iocbs.append(iocb)
            pointers = (ctypes.c_void_p * 1)(ctypes.addressof(iocb))
            assert _libc.syscall(submit, self._context, ctypes.c_long(1), pointers) == 1

    def wait(self) -> int:
        """Wait for one read; return its result."""
        events = ctypes.create_string_buffer(32)
        wait = struct.pack("=qq", 60, 0)
        one = ctypes.c_long(1)
        assert _libc.syscall(self._get, self._context, one, one, events, wait) == 1
        result: int = struct.unpack_from("=QQqq", events)[2]
        return result

    def close(self) -> None:
        _libc.syscall(self._destroy, self._context)


def _held(m: Mount) -> int:
    number: int = m.call("_held.__len__")
    return number


@pytest.mark.parametrize("opcode", [_PREAD, _PWRITE], ids=["read", "write"])
def test_asynchronous_request_of_which_a_path_moves_a_part_completes_once(
    mountpoint: Path, lower: Path, opcode: int
) -> None:
    """FUSE gets the rest. If it completed the request as well, the kernel would report that."""
    data = fill("b", 8 * BLOCK)
    path = backing(lower, data)
    with mounted(mountpoint, path="direct", generic_flags=_ASYNC_DIO, **LONG) as m:
        make(m, "f", data)
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR | os.O_DIRECT)
        for _ in range(20):
            results = _asynchronously(opcode, fd, _half_a_buffer(), 3 * BLOCK, 0)
            part = 2 * BLOCK if opcode == _PREAD else -errno.EIO
            assert results in ([part], [-errno.EFAULT])
        os.close(fd)
        expected = (
            fill("b", 8 * BLOCK) if opcode == _PREAD else b"w" * 2 * BLOCK + data[2 * BLOCK :]
        )
        assert Path(path).read_bytes() == expected


@pytest.mark.parametrize("flags", [0, FOPEN_DIRECT_IO], ids=["cached", "direct_io"])
def test_append_does_not_ask_for_the_size_as_long_as_asynchronous_reads_complete(
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
            generic_flags=_ASYNC_DIO,
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
        reads = _Asynchronous(direct, rounds)
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
            until(lambda left=left: writing.done() or _held(m) == left + 1)  # type: ignore[misc]
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


def test_loop_device_reports_a_write_that_a_path_carries_out_in_part(
    mountpoint: Path, lower: Path
) -> None:
    """The lower file system is full. The loop device takes a short write for a full one.

    Plain FUSE fails an asynchronous write that was short with EIO.
    """
    size = 2 << 20
    with (
        small(lower) as point,
        mounted(mountpoint, path="direct", generic_flags=_ASYNC_DIO, **LONG) as m,
        contextlib.ExitStack() as stack,
    ):
        path = backing(point, b"")
        os.truncate(path, size)
        with (point / "filler").open("wb", buffering=0) as filler:
            with contextlib.suppress(OSError):
                while filler.write(b"x" * 65536) == 65536:
                    pass
            filler.truncate(os.fstat(filler.fileno()).st_size - (512 << 10))
            os.fsync(filler.fileno())
        make(m, "f", bytes(size))
        whole(m, path, write=True)
        loop = run("losetup", "-f", "--show", "--direct-io=on", m / "f").stdout.strip()
        stack.callback(run, "losetup", "-d", loop)
        m.call("deny", "write", 0, errno.ENOSPC)
        written = fill("w", 1 << 20)
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
