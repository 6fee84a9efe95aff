# SPDX-License-Identifier: LGPL-2.1-or-later
"""FUSE's own pages of a file: shown, stored to through a map, and written back."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
import time

from tests.guest.support.file_data import BLOCK

LONG = {"entry_timeout": 600.0, "attr_timeout": 600.0}
"""Answers that stay valid for the whole test, as options of a mount."""

libc = ctypes.CDLL(None, use_errno=True)
"""The C library, for maps of more bytes than the file has and calls that Python lacks."""
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.sync_file_range.argtypes = [ctypes.c_int, *[ctypes.c_int64] * 2, ctypes.c_uint]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.pwrite.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64]
libc.pwrite.restype = ctypes.c_ssize_t


def sent(fd: int, position: int = 0) -> bytes:
    """Return the first byte of a block by sendfile(2), which uses FUSE's pages."""
    with tempfile.TemporaryFile() as copy:
        os.sendfile(copy.fileno(), fd, position, BLOCK)
        return os.pread(copy.fileno(), 1, 0)


def random_view(fd: int, blocks: int) -> mmap.mmap:
    """Map a file in such a way that a fault reads only one page."""
    view = mmap.mmap(fd, blocks * BLOCK)
    view.madvise(mmap.MADV_RANDOM)
    return view


def has_byte(fd: int) -> bool:
    """Tell whether the byte ``t`` has come into a pipe that does not block."""
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, 1) == b"t"
    return False


def store_by_address(fd: int, stores: dict[int, bytes], *, sync: bool = True) -> None:
    """Store into the first page of a file, also behind its end, and write the page back."""
    shared, both = mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
    address = libc.mmap(None, BLOCK, both, shared, fd, 0)
    for offset, data in stores.items():
        ctypes.memmove(address + offset, data, len(data))
    assert libc.munmap(address, BLOCK) == 0
    if sync:
        os.fsync(fd)


def written_back(fd: int, end: int) -> int:
    """Write back a file's first page without the inode lock, which write(2) takes.

    The function returns when *end* is readable, because closing an open file takes that lock, too.
    """
    wait_before, write, wait_after = 1, 2, 4
    status = int(libc.sync_file_range(fd, 0, BLOCK, wait_before | write | wait_after))
    os.read(end, 1)
    return status


def is_old(path: str) -> bool:
    """Return whether the next change is certain to move the file's timestamp."""
    return time.time_ns() - os.stat(path).st_ctime_ns > 100_000_000
