# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test the choice between cache and backing files: probes, predictions, and other programs.

The reader stays on one CPU, because each CPU has measurements of its own.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efuse.bpf import Event, EventKind, Listener
from efuse.control import PATHS
from efuse.stats import PathCounters, read
from tests.guest.support.backing_files import backing, make
from tests.guest.support.cpus import one_cpu
from tests.guest.support.daemons import Mount, eventually, mounted
from tests.guest.support.file_data import BLOCK

BLOCKS = 1024
DATA = random.Random(5).randbytes(BLOCKS * BLOCK)


class Reader:
    """A reader of one mapped file, past FUSE's page cache, that compares the bytes."""

    def __init__(self, m: Mount) -> None:
        self.m = m
        self._fd = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        self._buffer = memoryview(mmap.mmap(-1, 16 * BLOCK))

    def read(self, block: int, size: int = BLOCK) -> None:
        got = os.preadv(self._fd, [self._buffer[:size]], block * BLOCK)
        assert self._buffer[:got] == DATA[block * BLOCK : block * BLOCK + size]

    def paths(self) -> dict[str, PathCounters]:
        return dict(read(self.m.connection, timing=False).paths)

    def during(self, work: Callable[[], None]) -> dict[str, PathCounters]:
        """Return the increase of each path's counters during *work*."""
        before = self.paths()
        work()
        after = self.paths()
        return {path: after[path] - before[path] for path in PATHS}

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def reader(mountpoint: Path, lower: Path) -> Iterator[Reader]:
    with mounted(mountpoint, consistency="exclusive") as m, one_cpu():
        make(m, "f", DATA)
        m.call("map_extent", "f", backing(lower, DATA), os.O_RDONLY)
        m.log()
        r = Reader(m)
        try:
            yield r
        finally:
            r.close()
            assert "read" not in m.asked(), "the daemon was asked"


def test_each_round_begins_with_probes_of_both_paths(reader: Reader) -> None:
    reader.m.connection.round = 20
    reader.m.connection.probes = 3
    gained = reader.during(lambda: [reader.read(block) for block in range(100)] and None)
    assert {path: c.probes for path, c in gained.items()} == {
        "daemon": 0,
        "direct": 15,
        "cache": 15,
        "device": 0,
    }
    assert sum(c.chosen for c in gained.values()) == 100
    assert sum(c.requests for c in gained.values()) == 100


def test_each_request_size_has_its_own_rounds(reader: Reader) -> None:
    reader.m.connection.probes = 2
    small = reader.during(lambda: [reader.read(block) for block in range(4)] and None)
    large = reader.during(lambda: [reader.read(4 * n, 4 * BLOCK) for n in range(8)] and None)
    assert [small[path].probes for path in PATHS] == [0, 2, 2, 0]
    assert [large[path].probes for path in PATHS] == [0, 2, 2, 0]


def test_probes_of_0_probes_nothing(reader: Reader) -> None:
    reader.m.connection.probes = 0
    gained = reader.during(lambda: [reader.read(block) for block in range(200)] and None)
    assert [gained[path].probes for path in PATHS] == [0, 0, 0, 0]
    assert gained["direct"].requests == 200


def test_choice_changes_with_the_load_within_a_round(reader: Reader) -> None:
    """If a block is read again, the cache is worth a try. Before, it was only probed."""
    once = reader.during(lambda: [reader.read(block) for block in range(BLOCKS)] and None)
    assert [once[path].probes for path in PATHS] == [0, 4, 4, 0]
    assert sum(counters.requests for counters in once.values()) == BLOCKS
    hot = reader.during(lambda: [reader.read(n % 32) for n in range(1500)] and None)
    assert [hot[path].probes for path in PATHS] == [0, 0, 0, 0]
    assert hot["cache"].requests > 0
    predicted = [counters for counters in hot.values() if counters.predicted]
    assert predicted
    for counters in predicted:
        assert counters.predicted_ns > 0 and counters.actual_ns > 0
        assert counters.error_ns >= abs(counters.predicted_ns - counters.actual_ns)


def test_voided_blocks_are_not_served_on_any_path(reader: Reader) -> None:
    def voided() -> None:
        for n in range(500):
            reader.read(n % 8)
            reader.m.call("inval_inode", "f")

    gained = reader.during(voided)
    assert gained["cache"].requests > 0
    assert gained["cache"].partial == gained["cache"].requests


def test_change_of_path_is_an_event(reader: Reader) -> None:
    """The direct path serves blocks that are read once. For repeated reads the cache gets a try."""
    reader.m.connection.round = 100
    assert reader.m.attachment
    told: list[Event] = []
    with Listener(reader.m.attachment.maps) as listener:
        reader.during(lambda: [reader.read(block) for block in range(64)] and None)

        def cache_was_chosen() -> bool:
            reader.during(lambda: [reader.read(n % 8) for n in range(300)] and None)
            told.extend(event for event in listener.read() if event.kind is EventKind.PATH)
            return "cache" in {event.path for event in told}

        eventually(cache_was_chosen)
        assert listener.lost == 0
    nodeid = reader.m.call("nodeid", "f")
    assert {event.nodeid for event in told} == {nodeid}
    assert {event.length for event in told} == {BLOCK}
    assert all(a.path != b.path for a, b in itertools.pairwise(told))


_POLICY = """
#include "efuse.bpf.h"

BPF_HASH(seen, u64, u64, 64);

int select_path(struct efuse_req *req)
{
    const struct efuse_path_info *info = efuse_path_info(req, sizeof(*info));
    u64 offset = efuse_req_offset(req);

    if (!info || efuse_req_opcode(req) != FUSE_READ)
        return EFUSE_PATH_AUTO;
    if (info->eligible != (1 << EFUSE_PATH_DAEMON | 1 << EFUSE_PATH_DIRECT | 1 << EFUSE_PATH_CACHE))
        return -1;
    efuse_path_predict(req, 12345, (u32)offset);
    return (offset ? EFUSE_PATH_CACHE : EFUSE_PATH_DIRECT) | EFUSE_PATH_MEASURE;
}

int path_done(struct efuse_req *req)
{
    const struct efuse_path_info *info = efuse_path_info(req, sizeof(*info));
    u64 key, value;

    if (!info)
        return 0;
    key = info->note;
    value = info->path | info->missed << 8 | (info->elapsed_ns > 0) << 16;
    seen.update(&key, &value);
    return 1;
}
"""


def test_select_path_and_path_done_handlers_choose_and_measure(
    mountpoint: Path, lower: Path
) -> None:
    with mounted(mountpoint, attach=False, consistency="exclusive") as m:
        m.attach(handlers={"select_path": _POLICY, "path_done": _POLICY})
        assert m.attachment
        make(m, "f", DATA)
        m.call("map_extent", "f", backing(lower, DATA), os.O_RDONLY)
        m.log()
        r = Reader(m)
        before = m.connection.invalid_verdicts
        gained = r.during(lambda: [r.read(block) for block in (0, 1, 1)] and None)
        r.close()
        assert "read" not in m.asked()
        assert m.connection.invalid_verdicts == before
        seen = m.attachment.maps["seen"].read_all()
        # The map has the path, whether it was enough, and whether it was timed, of the last READ of
        # each block.
        assert seen == {0: 2 | 1 << 16, BLOCK: 3 | 1 << 16}
        assert (gained["cache"].predicted, gained["direct"].predicted) == (2, 1)
        assert gained["cache"].predicted_ns == 2 * 12345
        assert gained["cache"].partial == 1


def test_times_are_counted_by_class(reader: Reader) -> None:
    first = read(reader.m.connection).paths  # From now on each request is timed.
    for block in range(50):
        reader.read(block)
    after = read(reader.m.connection).paths
    for path in PATHS:
        gained = after[path] - first[path]
        assert sum(gained.latency) == gained.timed == gained.requests, path
        if gained.timed:
            slowest = gained.quantile_ns(1.0)
            assert slowest is not None and gained.ns <= slowest * gained.timed
