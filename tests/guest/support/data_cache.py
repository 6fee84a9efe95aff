# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mount with one file for tests of the data cache, and what the cache did."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from efuse.bpf import libbpf
from tests.guest.support.backing_files import make
from tests.guest.support.daemons import Mount, mounted
from tests.guest.support.file_data import BLOCK, SIZE, fill, read_direct, write

BLOCKS = -(-SIZE // BLOCK)


@contextlib.contextmanager
def cached(mountpoint: Path, **options: Any) -> Iterator[Mount]:
    """Mount a file system with one file, ``f``, whose blocks the cache does not hold."""
    with mounted(mountpoint, **({"consistency": "exclusive"} | options)) as m:
        make(m, "f", fill("d"))
        m.log()
        yield m


def path_count(m: Mount, name: str, path: str = "cache") -> int:
    """Return a counter of an I/O path."""
    return m.connection.counts(f"paths/{path}")[name]


def warm(m: Mount) -> None:
    """Read the file once, to beyond its end, so that the cache holds all of it."""
    assert read_direct(m / "f", SIZE + BLOCK) == fill("d")
    m.log()


def requests(m: Mount) -> list[tuple[int, int]]:
    """Return offset and size of each READ that the daemon got since the last call."""
    return [(offset, size) for offset, size in m.call("reads")]


def overwrite_tags(m: Mount, at: int, value: bytes) -> None:
    """Overwrite bytes of every tag that is in use."""
    assert m.attachment
    tags = m.attachment.maps["tags"]
    for number in tags:
        key = number.to_bytes(4, "little")
        raw = bytearray(libbpf.map_lookup(tags.fd, key, 512) or b"")
        for way in range(8):
            if struct.unpack_from("=Q", raw, way * 64 + 8)[0]:
                raw[way * 64 + at : way * 64 + at + len(value)] = value
        libbpf.map_update(tags.fd, key, bytes(raw))


def _truncate(m: Mount) -> bytes:
    os.truncate(m / "f", 5000)
    return fill("d")[:5000]


def _truncate_and_extend(m: Mount) -> bytes:
    os.truncate(m / "f", 5000)
    os.truncate(m / "f", SIZE)
    return fill("d")[:5000] + bytes(SIZE - 5000)


def _open_truncated(m: Mount) -> bytes:
    os.close(os.open(m / "f", os.O_WRONLY | os.O_TRUNC))
    return b""


def _extend(m: Mount) -> bytes:
    write(m / "f", b"end", SIZE + 3 * BLOCK)
    return fill("d") + bytes(3 * BLOCK) + b"end"


def _append(m: Mount) -> bytes:
    write(m / "f", b"end", 0, os.O_APPEND)
    return fill("d") + b"end"


def _allocate(m: Mount) -> bytes:
    fd = os.open(m / "f", os.O_RDWR)
    os.posix_fallocate(fd, SIZE, 100)
    os.close(fd)
    return fill("d") + bytes(100)


def _copy(m: Mount) -> bytes:
    one = os.open(m / "g", os.O_RDONLY)
    two = os.open(m / "f", os.O_RDWR)
    assert os.copy_file_range(one, two, BLOCK, 0, BLOCK) == BLOCK
    os.close(one)
    os.close(two)
    return fill("d")[:BLOCK] + fill("g")[:BLOCK] + fill("d")[2 * BLOCK :]


def _notify(m: Mount) -> bytes:
    m.model.put("f", fill("n"))
    m.call("inval_inode", "f")
    return fill("n")


def _store(m: Mount) -> bytes:
    m.model.put("f", b"s" * BLOCK + fill("d")[BLOCK:])
    m.call("store", "f", 0, b"s" * BLOCK)
    return b"s" * BLOCK + fill("d")[BLOCK:]


def _invalidate(m: Mount) -> bytes:
    m.model.put("f", fill("n"))
    m.connection.invalidate()
    return fill("n")


CHANGES = [
    _truncate,
    _truncate_and_extend,
    _open_truncated,
    _extend,
    _append,
    _allocate,
    _copy,
    _notify,
    _store,
    _invalidate,
]
