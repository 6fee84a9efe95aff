# SPDX-License-Identifier: LGPL-2.1-or-later
"""Replay a trace of blocks through a data cache that is smaller than the trace."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from efuse.stats import read
from tests.guest.support.backing_files import make
from tests.guest.support.data_cache import cached
from tests.guest.support.file_data import BLOCK
from tests.perf.traces import BLOCKS, ROOM


def _content(block: int) -> bytes:
    """Return the bytes of a block, which tell its number."""
    return struct.pack("=Q", block) * (BLOCK // 8)


def cache_hits(mountpoint: Path, trace: list[int]) -> int:
    """Read *trace* through a cache of :data:`ROOM` blocks; return how many reads it answered."""
    buffer = mmap.mmap(-1, BLOCK)
    with cached(mountpoint, capacity={"blocks": ROOM}) as m:
        make(m, "t", b"".join(map(_content, range(BLOCKS))))
        fd = os.open(m / "t", os.O_RDONLY | os.O_DIRECT)
        before = read(m.connection, timing=False).paths["cache"]
        for block in trace:
            assert os.preadv(fd, [buffer], block * BLOCK) == BLOCK
            assert buffer[:] == _content(block)
        gained = read(m.connection, timing=False).paths["cache"] - before
        os.close(fd)
    return gained.requests - gained.partial
