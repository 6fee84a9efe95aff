# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test chains: restarted runs go from block to block below the file system.

Changes of the file that free blocks wait for each chain.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from efuse import functions
from efuse.errors import EfuseError
from efuse.functions import BtreeLookup, BtreeRange, Count, Place, Run, Status, Unchained, Why
from efuse.functions.btree_file import build
from tests.commands import AS_NOBODY
from tests.guest.support import csd_device
from tests.guest.support.csd_device import Device, noise
from tests.guest.support.functions import (
    BLOCK,
    CHAINING,
    Background,
    btree_items,
    jumps_args,
    jumps_seen,
    numbered,
    outcome,
    stack_of,
)
from tests.guest.support.manual_daemon import DEADLINE_S, until
from tests.guest.support.shell import run

EXT4_IOC_MOVE_EXT = 0xC028660F
COUNT = 700
"""The number of blocks of a file, more than a layout has."""
PLACES = (Place.KERNEL, Place.DEVICE)
ENDLESS = CHAINING.replace("at->number++ & 15", "0")
"""A function that reads the first of the blocks again and again."""

# A function that emits 64 KiB for each block that it jumps to.
LOUD = """
#include "csd.bpf.h"
struct at { u64 number; };
int step(struct csd_run *run)
{
	struct at *at = csd_scratch(run, sizeof(*at));
	if (!at)
		return -EPROTO;
	for (int i = 0; i < 16; i++)
		csd_emit_block(run, 0, csd_len(run));
	if (++at->number == 12)
		return CSD_DONE;
	csd_next(run, at->number * 50 * CSD_BLOCK_SIZE);
	return CSD_GO_ON;
}
CSD_SCRATCH(struct at)
CSD_FLAGS(CSD_JUMPS)
"""


def offsets(numbers: Sequence[int]) -> bytes:
    """Return the arguments of CHAINING that make it read the blocks *numbers*."""
    return jumps_args([number * BLOCK for number in numbers])


def seen(numbers: Sequence[int], add: int = 0) -> list[tuple[int, int]]:
    """Return what CHAINING emits if each block holds its own number plus *add*."""
    return [(number * BLOCK, number + add) for number in (0, *numbers)]


@contextlib.contextmanager
def chaining(path: Path, place: Place = Place.KERNEL, flags: int = os.O_RDONLY) -> Iterator[Run]:
    """Yield a run of CHAINING that has ended once, with no page of its file in the page cache."""
    with functions.load("chaining", CHAINING):
        fd = os.open(path, flags)
        try:
            with functions.run("chaining", fd, offsets([]), place=place) as one:
                one.result()
                assert one.status().chained == 0
                if place == Place.KERNEL:
                    assert one.status().unchained == Unchained.FIRST
                cool(path)
                yield one
        finally:
            os.close(fd)


def cool(path: Path) -> None:
    """Drop all pages of a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def restart(one: Run, numbers: Sequence[int]) -> tuple[list[tuple[int, int]], Status]:
    """Restart CHAINING, and return the blocks that it saw and its status."""
    one.restart(offsets(numbers))
    return jumps_seen(one.result()), one.status()


def in_one_go(status: Status, place: Place, steps: int) -> bool:
    """Return whether all blocks of a pass were read below the file system."""
    if place == Place.DEVICE:
        return status.device_steps == steps
    return status.chained == status.kernel_steps == steps


@pytest.fixture
def f(files: Path) -> Path:
    """Return a file of numbered blocks."""
    path = files / "f"
    path.write_bytes(numbered(range(COUNT)))
    os.sync()
    return path


@contextlib.contextmanager
def held(device: Device, one: Run, numbers: Sequence[int]) -> Iterator[Background]:
    """Restart CHAINING, and let the device hold its first request until the context ends."""
    one.restart(offsets(numbers))
    # The locations of blocks that are still unknown are found by other requests.
    device.write("hold", 1)
    try:
        waiting = Background(one)
        device.wait("held", 1)
        yield waiting
    finally:
        device.write("hold", 0)


class Reader:
    """A process that runs a function when it gets a line of input."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def printed(self) -> str:
        """Wait for a line of its output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def resume(self) -> None:
        """Send the process a line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def reader(code: str, *prefix: str) -> Iterator[Reader]:
    """Start Python with *code*, behind the command *prefix*."""
    command, pipe = (*prefix, sys.executable, "-c", code), subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield Reader(process)


# Restarts


def test_run_restarts_with_other_arguments(files: Path) -> None:
    data = noise(100 * BLOCK + 7)
    (files / "f").write_bytes(data)
    calls = [Count(bytes([n])) for n in range(5)]
    for place in (*PLACES, Place.AUTO):
        with (
            functions.load("count"),
            functions.run("count", files / "f", Count().encode(), place=place) as one,
        ):
            for call in calls:
                one.restart(call.encode())
                assert one.result() == call.reference(data)
                # A step may do any part of the pass, since the next restart begins again.
                one.restart(call.encode())
                one.step()
            status = one.status()
            assert status.chained == 0
            if place == Place.KERNEL:
                assert status.unchained == Unchained.FOLLOWS
            with pytest.raises(EfuseError, match="EMSGSIZE"):
                one.restart(b"1")
            with (files / "f").open("ab") as file:
                file.write(b"x" * BLOCK)
            one.restart(calls[0].encode())
            assert one.result() == calls[0].reference(data + b"x" * BLOCK)
            (files / "f").write_bytes(data)


def test_run_restarts_after_an_error(f: Path) -> None:
    for place in PLACES:
        with chaining(f, place) as one:
            for _ in range(3):
                one.restart(offsets([COUNT]))
                with pytest.raises(EfuseError, match="ERANGE"):
                    one.result()
                found, status = restart(one, [5, 3])
                assert found == seen([5, 3])
                assert in_one_go(status, place, 3)


@pytest.mark.parametrize("place", PLACES)
def test_btree_lookup_reads_four_blocks_in_one_chain(
    place: Place, device: Device, files: Path
) -> None:
    path = files / "f"
    path.write_bytes(build(btree_items().items()))
    cool(path)
    keys = [0, 1, 59_997, 59_998, 1 << 63, *Random(1).sample(range(60_000), 40)]
    call = BtreeLookup(keys[0])
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with (
        functions.load(call.name),
        functions.run(call.name, fd, call.encode(), place=place) as one,
    ):
        one.result()
        # This pass finds out where the blocks are.
        one.restart(call.encode())
        one.result()
        before = device.read("commands"), device.read("reads")
        for key in keys:
            call = BtreeLookup(key)
            one.restart(call.encode())
            assert call.decode(one.result()) == btree_items().get(key)
            # These are the header, the root, a node and a leaf.
            assert in_one_go(one.status(), place, 4)
        commands, reads = (
            device.read("commands") - before[0],
            device.read("reads") - before[1],
        )
        if place == Place.DEVICE:
            assert (commands, reads) == (len(keys), 0)
        else:
            assert (commands, reads) == (0, 4 * len(keys))
    os.close(fd)


@pytest.mark.parametrize("place", [*PLACES, Place.AUTO])
def test_btree_range_returns_the_items_of_the_range(place: Place, files: Path) -> None:
    """The function goes from node to node, and then along the leaves."""
    path = files / "f"
    path.write_bytes(build(btree_items().items()))
    cool(path)
    source = Random(2)
    call = BtreeRange(0, 0)
    with (
        functions.load(call.name),
        functions.run(call.name, path, call.encode(), place=place) as one,
    ):
        for _ in range(40):
            first = source.randrange(60_000)
            call = BtreeRange(first, first + source.randrange(30_000))
            one.restart(call.encode())
            wanted = [(k, v) for k, v in btree_items().items() if call.first <= k <= call.last]
            assert call.decode(one.result()) == wanted


@pytest.mark.parametrize("place", PLACES)
def test_chain_with_much_output_is_not_interrupted(place: Place, f: Path) -> None:
    wanted = b"".join(16 * numbered([50 * n]) for n in range(12))
    with functions.load("loud", LOUD), functions.run("loud", f, place=place) as one:
        assert one.result() == wanted
        cool(f)
        for _ in range(3):
            one.restart()
            assert one.result() == wanted
            assert in_one_go(one.status(), place, 12)


@pytest.mark.parametrize("place", PLACES)
def test_chain_that_exceeds_its_steps_or_range_fails(place: Place, f: Path) -> None:
    with functions.load("chaining", CHAINING):
        for limits, numbers, printed in (
            ({"max_steps": 9}, [0] * 16, "ELOOP"),
            ({"offset": BLOCK}, [0], "ERANGE"),
            ({"length": 5 * BLOCK}, [5], "ERANGE"),
        ):
            with functions.run("chaining", f, offsets([]), place=place, **limits) as one:
                one.result()
                cool(f)
                for _ in range(2):
                    one.restart(offsets(numbers))
                    with pytest.raises(EfuseError, match=printed):
                        one.result()
                steps = one.status().device_steps + one.status().chained
                assert steps == (9 if printed == "ELOOP" else 1)


@pytest.mark.parametrize("place", PLACES)
def test_chain_sees_zeros_after_a_range_that_ends_within_a_block(place: Place, files: Path) -> None:
    path, high = files / "f", 1 << 40
    path.write_bytes(numbered(high + n for n in range(10)))
    with functions.load("chaining", CHAINING):
        length = 5 * BLOCK + 4
        with functions.run("chaining", path, offsets([]), length=length, place=place) as one:
            one.result()
            cool(path)
            for _ in range(2):
                found, status = restart(one, [5, 4])
                # The last block has four bytes, followed by zeros.
                assert found == [(0, high), (5 * BLOCK, 5), (4 * BLOCK, high + 4)]
                assert in_one_go(status, place, 3)


def test_endless_chain_ends_at_max_steps(device: Device, f: Path) -> None:
    """An endless chain lets others use the file now and then, and fails in the end."""
    with (
        functions.load("chaining", ENDLESS),
        functions.run("chaining", f, offsets([7]), max_steps=1000, place=Place.KERNEL) as one,
    ):
        for _ in range(2):
            one.restart(offsets([7]))
            with pytest.raises(EfuseError, match="ELOOP"):
                one.result()
            cool(f)
        status = one.status()
    assert (status.kernel_steps, status.chained) == (1000, 1000)


# Blocks that are not read below the file system


@pytest.mark.parametrize("place", PLACES)
def test_chain_reads_the_last_block_and_holes(place: Place, files: Path) -> None:
    path = files / "f"
    path.write_bytes(numbered(range(10)) + struct.pack("<I", 10))
    # The first range is a hole, and the second one is allocated but not written.
    run("fallocate", "-p", "-o", str(3 * BLOCK), "-l", str(2 * BLOCK), path)
    run("fallocate", "-o", str(4 * BLOCK), "-l", str(BLOCK), path)
    with chaining(path, place) as one:
        for _ in range(3):
            found, status = restart(one, [10, 2])
            assert found == seen([10, 2])
            assert in_one_go(status, place, 3)
            found, status = restart(one, [2, 3, 5, 4, 1])
            assert found == [(n * BLOCK, 0 if n in (3, 4) else n) for n in (0, 2, 3, 5, 4, 1)]
            # When the file system reads blocks, it may read others along with them.
            assert status.device_steps + status.chained in range(2, 5)
            cool(path)


def test_cached_blocks_are_read_through_the_file_system(device: Device, f: Path) -> None:
    with chaining(f) as one:
        reasons = []
        for passes in range(2, 42):
            found, status = restart(one, [500, 9])
            assert found == seen([500, 9])
            # Every 16th pass brings the blocks into the page cache, where the following passes find
            # them.
            assert status.chained == (0 if passes >= 16 else 3)
            reasons.append(status.unchained)
        assert reasons.count(Unchained.NOT) == 14
        assert reasons.count(Unchained.WARMS) == 2
        assert reasons.count(Unchained.CACHED) == 24
    with chaining(f, flags=os.O_RDONLY | os.O_DIRECT) as one:
        f.read_bytes()
        for _ in range(40):
            found, status = restart(one, [500, 9])
            assert (found, status.chained) == (seen([500, 9]), 3)


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDONLY | os.O_DIRECT])
@pytest.mark.parametrize("place", PLACES)
def test_chain_sees_what_was_written_between_passes(place: Place, flags: int, f: Path) -> None:
    """The test checks this while the file is open for writing, and after that."""
    numbers = [30, 600, 31]
    with chaining(f, place, flags) as one:
        for version in range(0, 4000, 1000):
            found, status = restart(one, numbers)
            assert found == seen(numbers, version)
            assert in_one_go(status, place, 4)
            with f.open("r+b") as file:
                file.write(numbered(range(version + 1000, version + 1000 + COUNT)))
                file.flush()
                found, status = restart(one, numbers)
                assert found == seen(numbers, version + 1000)
                assert status.chained == 0
                if place == Place.KERNEL:
                    direct = flags & os.O_DIRECT
                    assert status.unchained == (Unchained.WRITTEN if direct else Unchained.CACHED)
            # The file is dirty, but no longer open for writing.
            found, status = restart(one, numbers)
            assert found == seen(numbers, version + 1000)
            if flags & os.O_DIRECT:
                assert in_one_go(status, place, 4)
            cool(f)


def test_run_by_a_writable_descriptor_makes_no_chains(f: Path) -> None:
    """The run still works, but not below the file system."""
    with chaining(f, flags=os.O_RDWR) as one:
        found, status = restart(one, [30])
        assert (found, status.chained) == (seen([30]), 0)
        assert status.unchained == Unchained.WRITTEN


def test_file_on_no_device_makes_no_chains(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(numbered(range(COUNT)))
    with chaining(path) as one:
        found, status = restart(one, [1, 300])
        assert found == seen([1, 300])
        assert (status.chained, status.unchained) == (0, Unchained.FILESYSTEM)


# Races


def _punch(path: Path) -> None:
    with path.open("r+b") as file:
        own = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        run("fallocate", "-p", "-o", "0", "-l", str(COUNT * BLOCK), own)


OPENERS: dict[str, Callable[[Path], object]] = {
    "open": lambda path: os.close(os.open(path, os.O_RDWR)),
    "truncate": lambda path: os.truncate(path, 0),
    "replace": lambda path: path.write_bytes(b"new"),
    "punch": _punch,
}
"""Ways to open a file for writing."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", OPENERS)
def test_open_for_writing_waits_for_a_chain(
    what: str, place: Place, device: Device, f: Path
) -> None:
    """The open waits until the chain ends, and the chain sees the old bytes."""
    data = f.read_bytes()
    with chaining(f, place, os.O_RDONLY | os.O_DIRECT) as one:
        restart(one, [1])
        restart(one, [600])
        f.read_bytes()  # While the device holds requests, reads have to come from the page cache.
        with held(device, one, [600, 5, 4]) as waiting:
            opener = threading.Thread(target=OPENERS[what], args=(f,), daemon=True)
            opener.start()
            until(lambda: "__break_lease" in stack_of(opener))
            with pytest.raises(BlockingIOError):
                os.open(f, os.O_WRONLY | os.O_NONBLOCK)
            # Reading and renaming the file do not wait.
            assert f.read_bytes() == data
            f.rename(f.with_name("g"))
            f.with_name("g").rename(f)
            assert opener.is_alive()
        opener.join(DEADLINE_S)
        assert not opener.is_alive()
        status = waiting.end(last=False)
        assert jumps_seen(waiting.found or b"") == seen([600, 5, 4])
        assert in_one_go(status, place, 4)
        one.restart(offsets([1]))
        found = outcome(one.result)
        if what == "replace":
            assert "ERANGE" in str(found)
            assert f.read_bytes() == b"new"
        else:
            wanted = {"open": seen([1]), "truncate": [], "punch": [(0, 0), (BLOCK, 0)]}
            assert isinstance(found, bytes)
            assert jumps_seen(found) == wanted[what]


# Changes that free blocks of the file without opening it for writing


def _overlay(path: Path) -> Path:
    """Return the path of the file in the overlay whose upper directory contains it."""
    return path.parents[2] / "overlay" / path.name


CUTTERS: dict[str, Callable[[Path], object]] = {
    "o_trunc": lambda path: os.close(os.open(path, os.O_RDONLY | os.O_TRUNC)),
    "overlay": lambda path: os.truncate(_overlay(path), 0),
}
"""Ways to truncate a file without an open for writing, which would break a lease."""


@pytest.fixture
def below(files: Path) -> Iterator[Path]:
    """Yield a file of numbered blocks in the upper directory of an overlay."""
    path, top = files / "upper" / "f", _overlay(files / "upper" / "f").parent
    lower, work = files / "lower", files / "work"
    for directory in (path.parent, lower, work, top):
        directory.mkdir(exist_ok=True)
    path.write_bytes(numbered(range(COUNT)))
    os.sync()
    where = f"lowerdir={lower},upperdir={path.parent},workdir={work}"
    run("mount", "-t", "overlay", "-o", where, "overlay", top)
    yield path
    run("umount", top)
    for file in path.parent.iterdir():
        file.unlink()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", CUTTERS)
def test_blocks_freed_between_chains_are_not_read(how: str, place: Place, below: Path) -> None:
    numbers = [30, 600, 31]
    with chaining(below, place, os.O_RDONLY | os.O_DIRECT) as one:
        restart(one, numbers)
        found, status = restart(one, numbers)
        assert found == seen(numbers)
        assert in_one_go(status, place, 4)
        CUTTERS[how](below)
        os.sync()
        # Let another file take the blocks.
        below.with_name("secret").write_bytes(numbered([666] * (4 * COUNT)))
        os.sync()
        assert restart(one, numbers)[0] == []
        os.truncate(_overlay(below), COUNT * BLOCK)
        found, _ = restart(one, numbers)
        assert found == [(number * BLOCK, 0) for number in (0, *numbers)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", CUTTERS)
def test_truncate_waits_for_a_chain(how: str, place: Place, device: Device, below: Path) -> None:
    with chaining(below, place, os.O_RDONLY | os.O_DIRECT) as one:
        restart(one, [1])
        restart(one, [600])
        with held(device, one, [600, 5, 4]) as waiting:
            cutter = threading.Thread(target=CUTTERS[how], args=(below,), daemon=True)
            cutter.start()
            until(lambda: "inode_dio_wait" in stack_of(cutter))
        cutter.join(DEADLINE_S)
        assert not cutter.is_alive()
        status = waiting.end(last=False)
        assert jumps_seen(waiting.found or b"") == seen([600, 5, 4])
        assert in_one_go(status, place, 4)
        assert restart(one, [600, 5, 4])[0] == []


@pytest.mark.parametrize("place", PLACES)
def test_truncate_waits_for_a_long_chain_only_until_it_is_interrupted(
    place: Place, device: Device, f: Path
) -> None:
    """A chain on a slow device ends before its last block, and the next chain begins later."""
    with (
        functions.load("chaining", ENDLESS),
        functions.run("chaining", f, offsets([7]), max_steps=200, place=place) as one,
    ):
        with pytest.raises(EfuseError, match="ELOOP"):
            one.result()
        cool(f)
        # This pass finds out where the blocks are.
        one.restart(offsets([7]))
        with pytest.raises(EfuseError, match="ELOOP"):
            one.result()
        cool(f)
        one.restart(offsets([7]))
        device.write("media_latency_ns", 400_000_000)
        device.write("model", 1)
        try:
            waiting = Background(one)
            until(lambda: one.status().position == 7 * BLOCK)
            cutter = threading.Thread(target=CUTTERS["o_trunc"], args=(f,), daemon=True)
            cutter.start()
            until(lambda: "inode_dio_wait" in stack_of(cutter))
            status = waiting.end(last=False)
        finally:
            device.write("model", 0)
            device.write("media_latency_ns", 0)
        cutter.join(DEADLINE_S)
        assert not cutter.is_alive()
        assert 1 < status.device_steps + status.chained < 64


def test_blocks_moved_between_chains_are_not_read(files: Path, f: Path) -> None:
    """Defragmentation opens the file for writing, but makes no visible change to it."""
    donor = files / "donor"
    with chaining(f, flags=os.O_RDONLY | os.O_DIRECT) as one:
        restart(one, [600])
        donor.write_bytes(bytes(COUNT * BLOCK))
        os.sync()
        version = os.stat(f).st_ctime_ns
        with f.open("r+b") as orig, donor.open("r+b") as other:
            argument = bytearray(struct.pack("<IIQQQQ", 0, other.fileno(), 0, 0, COUNT, 0))
            fcntl.ioctl(orig, EXT4_IOC_MOVE_EXT, argument)
            assert struct.unpack("<IIQQQQ", argument)[-1] == COUNT
            other.write(numbered([666] * COUNT))
        os.sync()
        assert os.stat(f).st_ctime_ns == version
        for _ in range(2):
            found, status = restart(one, [600, 31])
            assert found == seen([600, 31])
        assert in_one_go(status, Place.KERNEL, 3)


def test_chain_of_an_unprivileged_reader_delays_no_open_for_writing(
    device: Device, f: Path
) -> None:
    """A reader without the right to take a lease delays no open. Its blocks still stay in place."""
    f.parent.chmod(0o755)
    f.chmod(0o644)
    code = f"""
import os, sys
from efuse.functions import Place, run
fd = os.open({str(f)!r}, os.O_RDONLY | os.O_DIRECT)
one = run("chaining", fd, {offsets([])!r}, place=Place.KERNEL)
one.result()
for numbers in ({offsets([600, 5])!r}, {offsets([5, 600])!r}):
    one.restart(numbers)
    one.result()
print(one.status().chained, flush=True)
sys.stdin.readline()
one.restart({offsets([600, 5])!r})
print(one.result().hex(), one.status().chained, flush=True)
"""
    with functions.load("chaining", CHAINING), reader(code, *AS_NOBODY) as child:
        assert child.printed() == "3\n"
        device.write("hold", 1)
        try:
            child.resume()
            device.wait("held", 1)
            fd = os.open(f, os.O_WRONLY | os.O_NONBLOCK)
            cutter = threading.Thread(target=os.ftruncate, args=(fd, 0), daemon=True)
            cutter.start()
            until(lambda: "inode_dio_wait" in stack_of(cutter))
        finally:
            device.write("hold", 0)
        cutter.join(DEADLINE_S)
        assert not cutter.is_alive()
        os.close(fd)
        found, chained = child.printed().split()
    assert jumps_seen(bytes.fromhex(found)) == seen([600, 5])
    assert chained == "3"


def test_open_for_writing_does_not_wait_for_an_idle_run(f: Path) -> None:
    for place in PLACES:
        with chaining(f, place) as one:
            restart(one, [600])
            os.close(os.open(f, os.O_WRONLY | os.O_NONBLOCK))
            found, status = restart(one, [600])
            assert found == seen([600])
            assert in_one_go(status, place, 2)


def test_chains_read_no_blocks_that_another_file_was_given(device: Device, files: Path) -> None:
    """The file is rewritten, punched and truncated, and another file gets its blocks."""
    path, other = files / "f", files / "other"
    size = 64
    rounds = 60
    stop = threading.Event()
    problems: list[tuple[int, int]] = []

    def version(number: int) -> bytes:
        return numbered(number * 1000 + n for n in range(size))

    def write() -> None:
        source = Random(3)
        for number in range(1, rounds + 1):
            what = source.choice(("over", "punch", "cut", "o_trunc"))
            if what == "o_trunc":
                CUTTERS[what](path)
            with path.open("r+b") as file:
                if what == "cut":
                    os.truncate(file.fileno(), 0)
                elif what == "punch":
                    run("fallocate", "-p", "-o", "0", "-l", str(size * BLOCK), path)
                if what != "over":
                    os.fsync(file.fileno())
                    other.write_bytes(numbered([1 << 60] * (2 * size)))
                    os.sync()
                file.write(version(number))
            os.sync()
        stop.set()

    path.write_bytes(version(0))
    os.sync()
    whole = 0
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with functions.load("chaining", CHAINING):
        writer = threading.Thread(target=write)
        runs = [
            functions.run("chaining", fd, offsets([]), length=size * BLOCK, place=place)
            for place in (*PLACES, Place.AUTO)
        ]
        writer.start()
        source = Random(4)
        while not stop.is_set():
            for one in runs:
                numbers = [source.randrange(size) for _ in range(6)]
                one.restart(offsets(numbers))
                found = outcome(one.result)
                status = one.status()
                if isinstance(found, str):
                    # The file was shorter when the pass began.
                    assert "ERANGE" in found or "ELOOP" in found
                    continue
                blocks = jumps_seen(found)
                # The block is of some version, of a hole, or beyond the file's end.
                problems += [b for b in blocks if b[1] and b[1] % 1000 != b[0] // BLOCK]
                # The file was not written to during the pass.
                if status.chained == len(blocks) > 0:
                    whole += 1
                    versions = {number // 1000 for _, number in blocks}
                    assert len(versions) == 1, blocks
        writer.join(DEADLINE_S)
        for one in runs:
            found, _ = restart(one, [5, 63])
            assert found == seen([5, 63], 1000 * rounds)
            one.close()
    os.close(fd)
    assert not problems
    assert whole


# Failures


@pytest.mark.parametrize("place", PLACES)
def test_chain_returns_the_right_blocks_despite_device_errors(
    place: Place, device: Device, f: Path
) -> None:
    failed = 0
    with chaining(f, place, os.O_RDONLY | os.O_DIRECT) as one:
        restart(one, [600])
        for every in (1, 2, 3, 5):
            # The page cache has the whole file, so that reads through the file system cannot fail.
            f.read_bytes()
            for _ in range(6):
                device.write("fail_every", every)
                found, status = restart(one, [600, 4, 7, 300])
                device.write("fail_every", 0)
                assert found == seen([600, 4, 7, 300])
                failed += not in_one_go(status, place, 5)
                if status.kernel_steps > status.chained:
                    assert status.unchained == Unchained.FAILED
                if place == Place.DEVICE and status.kernel_steps:
                    assert status.why == Why.FAILED
        # In the kernel a pass takes five requests, and at the device one.
        assert failed >= (6 if place == Place.DEVICE else 24)
        found, status = restart(one, [600])
        assert in_one_go(status, place, 2)


@pytest.mark.parametrize("place", PLACES)
def test_run_fails_after_its_function_was_unloaded(place: Place, device: Device, f: Path) -> None:
    with contextlib.ExitStack() as stack:
        loaded = stack.enter_context(functions.load("chaining", CHAINING))
        one = stack.enter_context(functions.run("chaining", f, offsets([]), place=place))
        one.result()
        cool(f)
        restart(one, [600])
        cool(f)
        with held(device, one, [600, 3]) as waiting:
            loaded.close()
        waiting.end(last=False)
        assert "ESTALE" in str(waiting.error)
        one.restart(offsets([]))
        with pytest.raises(EfuseError, match="ESTALE"):
            one.result()


@pytest.mark.parametrize("place", PLACES)
def test_signal_ends_an_endless_chain(place: Place, device: Device, f: Path) -> None:
    """The signal ends the chain at any point, not only at its end."""
    code = f"""
import os
from efuse.functions import Place, run
fd = os.open({str(f)!r}, os.O_RDONLY | os.O_DIRECT)
one = run("chaining", fd, {offsets([])!r}, place=Place({place.value}), max_steps=1 << 20)
one.result()
one.restart({offsets([7])!r})
one.step()
"""
    # Requests wait for the first time. At the device a function waits for the medium.
    slow = {"delay_ns": 50_000_000}
    counter, each = "reads", 1
    if place is Place.DEVICE:
        slow = {"media_latency_ns": 50_000_000, "model": 1}
        counter, each = "media_read_bytes", BLOCK
    with functions.load("chaining", ENDLESS):
        for name, value in slow.items():
            device.write(name, value)
        try:
            with subprocess.Popen([sys.executable, "-c", code]) as child:
                before = device.read(counter)
                until(lambda: device.read(counter) > before + 3 * each)
                child.send_signal(signal.SIGKILL)
                killed = device.read(counter)
                assert child.wait(DEADLINE_S) == -signal.SIGKILL
                assert device.read(counter) - killed < 32 * each
        finally:
            for name in reversed(slow):
                device.write(name, 0)
    # The lease ends with the run.
    os.close(os.open(f, os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.parametrize("place", PLACES)
def test_killed_reader_ends_while_the_device_holds_its_chain(
    place: Place, device: Device, f: Path
) -> None:
    code = f"""
import os, sys
from efuse.functions import Place, run
fd = os.open({str(f)!r}, os.O_RDONLY | os.O_DIRECT)
one = run("chaining", fd, {offsets([])!r}, place=Place({place.value}))
one.result()
for _ in range(2):
    one.restart({offsets([600])!r})
    one.result()
print("ready", flush=True)
sys.stdin.readline()
one.restart({offsets([600])!r})
one.result()
"""
    with functions.load("chaining", CHAINING), reader(code) as child:
        assert child.printed() == "ready\n"
        device.write("hold", 1)
        try:
            child.resume()
            device.wait("held", 1)
            child.process.send_signal(signal.SIGKILL)
            assert child.process.wait(DEADLINE_S) == -signal.SIGKILL
            assert device.read("held") == 0
        finally:
            device.write("hold", 0)
    # Truncation no longer waits for the chain.
    os.truncate(f, 0)


@pytest.mark.parametrize("place", PLACES)
def test_power_off_during_a_chain_fails_it_or_returns_the_right_blocks(
    place: Place, mountpoint: Path
) -> None:
    csd_device.load()
    path = mountpoint / "f"
    with csd_device.csd(size_mib=64, power=1) as device:
        run("mkfs.ext4", "-q", "-b", str(BLOCK), device.path)
        run("mount", device.path, mountpoint)
        path.write_bytes(numbered(range(COUNT)))
        os.sync()
        with chaining(path, place, os.O_RDONLY | os.O_DIRECT) as one:
            restart(one, [600])
            with held(device, one, [600, 1]) as waiting:
                device.write("power", 0)
            waiting.end()
        run("umount", mountpoint)
    assert waiting.found is not None or "EIO" in str(waiting.error)
    assert waiting.found is None or jumps_seen(waiting.found) == seen([600, 1])


@pytest.mark.parametrize("place", PLACES)
def test_chain_waits_the_latency_of_each_block(place: Place, device: Device, f: Path) -> None:
    """The latency applies to each block, not only to the first one."""
    with chaining(f, place, os.O_RDONLY | os.O_DIRECT) as one:
        restart(one, [600])
        device.write("media_latency_ns", 3_000_000)
        device.write("model", 1)
        try:
            began = time.monotonic()
            found, status = restart(one, [600, 3, 5])
            took = time.monotonic() - began
        finally:
            device.write("model", 0)
            device.write("media_latency_ns", 0)
        assert found == seen([600, 3, 5])
        assert in_one_go(status, place, 4)
        assert took >= 4 * 0.003


def test_chain_held_at_a_later_block_delays_writers_until_its_end(device: Device, f: Path) -> None:
    """The chain delays writers like any read, and they wait until all of it has ended.

    The device also holds the first request of a chain, and a chain that takes long is followed by
    another chain. So the block that is held must arrive soon after the chain has begun.
    """
    with chaining(f, flags=os.O_RDONLY | os.O_DIRECT) as one:
        restart(one, [600])
        reads = device.read("reads")
        try:
            with held(device, one, [600, 3, 5]) as waiting:
                device.write("delay_ns", 1_000_000_000)
            # The first block is on its way.
            device.write("hold", 1)
            device.write("delay_ns", 0)
            until(lambda: one.status().kernel_steps > 0)
            device.wait("held", 1)
            # The last block is still to come.
            assert one.status().kernel_steps == device.read("reads") - reads < 4
            with pytest.raises(BlockingIOError):
                os.open(f, os.O_WRONLY | os.O_NONBLOCK)
        finally:
            device.write("delay_ns", 0)
            device.write("hold", 0)
        status = waiting.end(last=False)
        assert jumps_seen(waiting.found or b"") == seen([600, 3, 5])
        assert in_one_go(status, Place.KERNEL, 4)


def test_chains_of_many_runs_of_one_file_return_the_right_blocks(f: Path) -> None:
    """The runs share the file, and each one has a lease of its own."""
    with functions.load("chaining", CHAINING):
        runs = [functions.run("chaining", f, offsets([]), place=PLACES[n % 2]) for n in range(6)]
        for one in runs:
            one.result()
        cool(f)
        for round_ in range(5):
            numbers = [600 - round_, 3, 400]
            for one in runs:
                one.restart(offsets(numbers))
            ones = [Background(one) for one in runs]
            for one in ones:
                status = one.end(last=False)
                assert jumps_seen(one.found or b"") == seen(numbers)
                assert status.device_steps == 4 or status.chained == 4
        for one in runs:
            one.close()
