# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which blocks the data cache keeps when it is full."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from efuse.stats import read
from tests.guest.test_cache import cached
from tests.guest.test_direct import BLOCK, fill, make
from tests.perf.traces import BLOCKS, ROOM, lru_hits, zipf, zipf_and_scans


def cache_hits(mountpoint: Path, trace: list[int]) -> int:
    """Read *trace* through a cache of :data:`ROOM` blocks; return how many reads it answered."""
    data = fill("t", BLOCKS * BLOCK)
    buffer = mmap.mmap(-1, BLOCK)
    with cached(mountpoint, capacity={"blocks": ROOM}) as m:
        make(m, "t", data)
        fd = os.open(m / "t", os.O_RDONLY | os.O_DIRECT)
        before = read(m.connection, timing=False).paths["cache"]
        for block in trace:
            assert os.preadv(fd, [buffer], block * BLOCK) == BLOCK
            assert buffer[:] == data[block * BLOCK : (block + 1) * BLOCK]
        gained = read(m.connection, timing=False).paths["cache"] - before
        os.close(fd)
    return gained.requests - gained.partial


@pytest.mark.parametrize("make_trace", [zipf, zipf_and_scans])
def test_it_keeps_nearly_what_lru_would(
    mountpoint: Path, make_trace: Callable[[int], list[int]]
) -> None:
    """In sets of eight ways, without a list that all CPUs share."""
    trace = make_trace(4000)
    hits = cache_hits(mountpoint, trace)
    assert 0.95 * lru_hits(trace) <= hits <= len(trace) - len(set(trace))
