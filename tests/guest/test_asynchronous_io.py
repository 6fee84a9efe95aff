# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test asynchronous requests (io_submit(2)) that a path carries out in part."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import mounted
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG

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
            assert results in ([2 * BLOCK], [-errno.EFAULT])
        os.close(fd)
        expected = (
            fill("b", 8 * BLOCK) if opcode == _PREAD else b"w" * 2 * BLOCK + data[2 * BLOCK :]
        )
        assert Path(path).read_bytes() == expected
