# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test which blocks the data cache keeps when it is full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.support.replacement import cache_hits
from tests.perf.traces import lru_hits, zipf, zipf_and_scans


@pytest.mark.parametrize("make_trace", [zipf, zipf_and_scans])
def test_full_cache_has_nearly_the_hits_of_lru(
    mountpoint: Path, make_trace: Callable[[int], list[int]]
) -> None:
    """The cache has sets of eight ways, and no list that all CPUs share."""
    trace = make_trace(4000)
    hits = cache_hits(mountpoint, trace)
    assert 0.95 * lru_hits(trace) <= hits <= len(trace) - len(set(trace))
