# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files whose bytes show where they come from, and reads and writes of them."""

from __future__ import annotations

import functools
import mmap
import os

BLOCK = 4096
SIZE = 10 * BLOCK + 123


@functools.lru_cache(64)
def fill(letter: str, size: int = SIZE) -> bytes:
    """Return *size* bytes. Each eight bytes are *letter* and their number in the file."""
    # Emulated guests run this for 8 MiB, so no bytecode runs for each number.
    numbers = map("{:07}".format, range(size // 8 + 1))
    return (letter + letter.join(numbers)).encode()[:size]


def read(path: str, size: int = 1 << 20, offset: int = 0, flags: int = 0) -> bytes:
    """Read a file by pread(2)."""
    fd = os.open(path, os.O_RDONLY | flags)
    # Touch all pages of the buffer: if one is missing, the kernel answers twice.
    buffer = bytearray(b"\1") * size
    try:
        return bytes(buffer[: os.preadv(fd, [buffer], offset)])
    finally:
        os.close(fd)


def pread_direct(fd: int, size: int, offset: int) -> bytes:
    """Read by one preadv(2) into aligned memory."""
    with mmap.mmap(-1, -(-size // BLOCK) * BLOCK) as buffer, memoryview(buffer) as view:
        return bytes(view[: os.preadv(fd, [view[:size]], offset)])


def read_direct(path: str, size: int, offset: int = 0) -> bytes:
    """Read past FUSE's page cache."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return pread_direct(fd, size, offset)
    finally:
        os.close(fd)


def write(path: str, data: bytes, offset: int = 0, flags: int = 0) -> int:
    """Write to a file by pwrite(2); return the number of bytes written."""
    fd = os.open(path, os.O_WRONLY | flags)
    try:
        return os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


def drop_pages(path: str | os.PathLike[str]) -> None:
    """Drop the pages of a file, of FUSE or of another file system, from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
