# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test daemons that fetch requests by io_uring, which Linux 7.x has, on plain FUSE and eFuse."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from efuse.bench import ring, transport
from efuse.bench.foreground import Program
from efuse.bench.load import load, prepare
from efuse.bench.programs import SID, URING, command
from efuse.bench.ring import COPYING, OVER_RINGS, OWN, RING, RINGS, ZERO_COPY
from efuse.bench.systems import EXCLUSIVE, is_efuse, mounted
from efuse.bench.transport import transported
from efuse.bench.usage import Moves
from efuse.control import Connection
from efuse.errors import EfuseError
from efuse.fs.options import Options
from tests.guest.support.daemons import eventually

SWITCH = Path("/sys/module/efuse/parameters/enable_uring")
BLOCK = 100_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    prepare(directory / "file")
    return directory


def _read_and_written(mount: Path, lower: Path) -> int:
    """Compare bytes both ways in two threads, and return the number of files."""
    data = random.Random(1).randbytes(3 * BLOCK)

    def write_and_read(number: int) -> None:
        mine = data[number:]
        (mount / f"new-{number}").write_bytes(mine)
        assert (lower / f"new-{number}").read_bytes() == mine
        (lower / f"below-{number}").write_bytes(mine)
        assert (mount / f"below-{number}").read_bytes() == mine
        with (mount / f"new-{number}").open("r+b") as file:
            file.truncate(BLOCK)
            file.seek(10)
            file.write(b"other")
        assert (lower / f"new-{number}").read_bytes() == mine[:10] + b"other" + mine[15:BLOCK]
        (mount / f"below-{number}").rename(mount / f"moved-{number}")
        assert os.stat(mount / f"moved-{number}").st_size == len(mine)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write_and_read, range(20)))
    assert (mount / "file").read_bytes() == (lower / "file").read_bytes()
    assert sorted(os.listdir(mount)) == sorted(os.listdir(lower))
    return len(os.listdir(lower))


# The systems and transports of the benchmark


@pytest.mark.parametrize("name", OVER_RINGS)
def test_files_read_and_written_over_io_uring_equal_the_lower_ones(
    name: str, source: Path, mountpoint: Path
) -> None:
    with mounted(name, source, mountpoint, SID) as system:
        os.stat(mountpoint / "file")  # After this the daemon has its rings.
        before = system.usage()
        _read_and_written(mountpoint, source)
        after = system.usage()
        system.prove(before, after, 0)
        assert after.total - before.total > 100
        assert len(after.rings) == 2 and all(after.rings)


def _proven(name: str, source: Path, mountpoint: Path) -> None:
    with transported(name, source, mountpoint, SID) as system:
        os.stat(mountpoint / "file")
        before = system.usage()
        found = load(system.root / "file", "read", 4096, 200, [0, 1])
        system.prove(before, system.usage(), found.requests)


@pytest.mark.parametrize("name", ["fuse", "fuse-clone-fd", "efuse", *OVER_RINGS])
def test_transport_of_the_new_libfuse_is_proven_by_its_counters(
    name: str, source: Path, mountpoint: Path
) -> None:
    _proven(name, source, mountpoint)


@pytest.mark.parametrize(("claimed", "used"), [(RING, "fuse"), ("fuse", RING)])
def test_proof_of_another_transport_than_used_fails(
    claimed: str, used: str, source: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = transport._words
    monkeypatch.setattr(transport, "_words", lambda _name, *rest: words(used, *rest))
    with ring.enabled(RING), pytest.raises(EfuseError, match=f"{claimed} was not measured"):
        _proven(claimed, source, mountpoint)


@pytest.mark.parametrize(
    ("claimed", "used"), [(ZERO_COPY[0], COPYING[0]), (COPYING[0], ZERO_COPY[0])]
)
def test_proof_of_zero_copy_without_zero_copy_fails(
    claimed: str, used: str, source: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = transport._words
    monkeypatch.setattr(transport, "_words", lambda _name, *rest: words(used, *rest))
    with pytest.raises(EfuseError, match="zero-copied"):
        _proven(claimed, source, mountpoint)


@pytest.mark.parametrize("name", RINGS)
def test_proof_with_io_uring_disabled_in_the_kernel_fails(
    name: str, source: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libfuse then goes on silently without io_uring."""
    monkeypatch.setattr(ring, "enabled", contextlib.nullcontext)
    with pytest.raises(EfuseError, match="only 0 came over io_uring"):
        _proven(name, source, mountpoint)


# Zero copy

_SIZE = (3 << 20) + 1000
# Place and length in the file, and the offset in its page at which the caller's buffer begins.
_PLACES = [
    (place, length, shift)
    for place, length in (
        *((0, 1), (4095, 2), (100, 4096), (8192, 4096), (777, 4095)),
        *((0, 65_536), (8192, 131_072), (12_345, 300_001), (3, 1 << 20), (4096, 2 << 20)),
    )
    for shift in (0, 13)
]


@contextlib.contextmanager
def _own(
    name: str, source: Path, mountpoint: Path, how: str = "timeout=0", declared: Options = EXCLUSIVE
) -> Iterator[Program]:
    """Run our daemon, on eFuse with handlers; all READs and WRITEs reach it.

    :param how: its options, besides zero copy.
    """
    words = command(URING, name, source, mountpoint, options=how)
    with (
        ring.enabled(name),
        Program.started(words, mountpoint, accelerated=is_efuse(name), options=declared) as program,
    ):
        os.stat(mountpoint / "file")  # After this the daemon has its rings.
        if program.connection is not None:
            Connection(program.connection).forced_path = "daemon"
        yield program


def _moves(name: str, mountpoint: Path) -> Moves:
    counted = ring.moves(name, mountpoint)
    assert counted is not None
    return counted


def _write_and_read_everywhere(mount: Path, lower: Path) -> None:
    """Compare bytes, of the file and around the caller's buffer, for each of the places."""
    some = random.Random(2)
    content = bytearray(some.randbytes(_SIZE))
    (lower / "places").write_bytes(content)
    with (mount / "places").open("r+b", buffering=0) as file, mmap.mmap(-1, 4 << 20) as memory:
        for place, length, shift in _PLACES:
            new = some.randbytes(length)
            with memoryview(memory)[shift : shift + length] as buffer:
                buffer[:] = new
                assert os.pwritev(file.fileno(), [buffer], place) == length
            content[place : place + length] = new
        os.fsync(file.fileno())
        assert (lower / "places").read_bytes() == content
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for place, length, shift in (*_PLACES, (_SIZE - 100, 4096, 13)):
            around = shift + length + 100
            memory[:around] = b"\xaa" * around
            with memoryview(memory)[shift : shift + length] as buffer:
                got = os.preadv(file.fileno(), [buffer], place)
            assert got == min(length, _SIZE - place)
            assert memory[shift : shift + got] == content[place : place + length]
            rest = around - shift - got
            assert memory[:shift] == b"\xaa" * shift and memory[around - rest : around] == (
                b"\xaa" * rest
            )


@pytest.mark.parametrize("how", ["timeout=0", "timeout=0,cache=never", "timeout=0,writeback"])
@pytest.mark.parametrize("name", OWN)
def test_bytes_of_every_size_and_place_are_right_with_and_without_zero_copy(
    name: str, how: str, source: Path, mountpoint: Path
) -> None:
    with _own(name, source, mountpoint, how):
        before = _moves(name, mountpoint)
        _write_and_read_everywhere(mountpoint, source)
        after = _moves(name, mountpoint)
    data = after.data - before.data
    assert data > 10
    assert after.zero_copied - before.zero_copied == (data if name in ZERO_COPY else 0)
    if how.endswith("never"):
        # Without zero copy, only READs are moved by io_uring.
        times = 2 if name in ZERO_COPY else 1
        asked = times * sum(length for _, length, _ in _PLACES) + 100
        assert after.moved_bytes - before.moved_bytes == asked


@pytest.mark.parametrize("blocks", [0, 1 << 14], ids=["without data cache", "with data cache"])
@pytest.mark.parametrize("how", ["timeout=0", "timeout=0,cache=never"])
def test_parts_of_a_large_request_are_zero_copied(
    how: str, blocks: int, source: Path, mountpoint: Path
) -> None:
    name, part = ZERO_COPY[1], 64 << 10
    declared = replace(EXCLUSIVE, max_request=1 << 20, capacity={"blocks": blocks})
    with _own(name, source, mountpoint, f"{how},max_size={part}", declared) as program:
        before, asked = _moves(name, mountpoint), program.usage()
        _write_and_read_everywhere(mountpoint, source)
        after, had = _moves(name, mountpoint), program.usage()
    data = after.data - before.data
    assert data >= sum(length for _, length, _ in _PLACES[-4:]) // part
    assert after.zero_copied - before.zero_copied == data
    if how.endswith("never"):
        assert asked.sample is not None and had.sample is not None
        requests = had.sample.total.requests - asked.sample.total.requests
        assert requests < data  # So some had parts.


@pytest.mark.parametrize("name", [COPYING[1], ZERO_COPY[1]])
def test_direct_reads_fill_the_data_cache_with_the_right_bytes(
    name: str, source: Path, mountpoint: Path
) -> None:
    """The daemon gets pages of the kernel, because the caller could change its own meanwhile."""
    size = 256 << 10
    content = random.Random(4).randbytes(size)
    (source / "direct").write_bytes(content)
    with _own(name, source, mountpoint) as program, mmap.mmap(-1, size) as memory:
        fd = os.open(mountpoint / "direct", os.O_RDONLY | os.O_DIRECT)
        try:
            Connection(program.number).forced_path = "cache"
            before = at = _moves(name, mountpoint)
            for _ in range(4):  # Blocks may be kept from the second time on.
                memory[:] = bytes(size)
                assert os.preadv(fd, [memory], 0) == size and memory[:] == content
                last, at = at, _moves(name, mountpoint)
            data = at.data - before.data
            assert data >= 1
            assert at.zero_copied - before.zero_copied == (data if name in ZERO_COPY else 0)
            assert at.data == last.data  # The data cache has answered the last READ.
        finally:
            os.close(fd)


@pytest.mark.parametrize("name", [COPYING[1], ZERO_COPY[1]])
def test_parts_of_a_read_for_the_page_cache_are_whole_pages(
    name: str, source: Path, mountpoint: Path
) -> None:
    """FUSE clears what a READ for the page cache leaves of a page."""
    content = random.Random(3).randbytes(_SIZE)
    (source / "odd").write_bytes(content)
    declared = replace(EXCLUSIVE, max_request=1 << 20)
    with _own(name, source, mountpoint, "timeout=0,max_read=5000", declared):
        assert (mountpoint / "odd").read_bytes() == content
        assert _moves(name, mountpoint).data >= _SIZE // 5000


def test_death_of_a_daemon_with_zero_copy_ends_all_requests(source: Path, mountpoint: Path) -> None:
    def read_until_it_ends() -> int | None:
        data = (source / "file").read_bytes()
        try:
            for _ in range(1_000_000):
                assert (mountpoint / "file").read_bytes() == data
        except OSError as error:
            return error.errno
        return None

    name = ZERO_COPY[1]
    with (
        _own(name, source, mountpoint, "timeout=0,cache=never") as program,
        ThreadPoolExecutor(3) as pool,
    ):
        reading = [pool.submit(read_until_it_ends) for _ in range(3)]
        try:
            eventually(lambda: _moves(name, mountpoint).zero_copied > 50, "READs came")
        finally:
            program._process.kill()
        assert None not in {each.result() for each in reading}


# On eFuse


@contextlib.contextmanager
def _efuse(
    source: Path,
    mountpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    on: bool,
    channels: bool,
    asks: str = "option",
    lazy_open: bool = False,
) -> Iterator[Program]:
    """Run a daemon on eFuse with handlers.

    :param on: whether the module lets daemons use io_uring.
    :param asks: how io_uring is asked for: by an ``option`` of the daemon, its ``environment``, or
        not at all.
    :param lazy_open: whether that is promised.
    """
    monkeypatch.setenv("EFUSE_CHANNELS", f"{channels:d}")
    if asks == "environment":
        monkeypatch.setenv("FUSE_URING_ENABLE", "1")
    options = "timeout=0,io_uring" if asks == "option" else "timeout=0"
    words = command(SID, "efuse", source, mountpoint, options=options)
    SWITCH.write_text(f"{on:d}")
    try:
        promised = replace(EXCLUSIVE, lazy_open=lazy_open)
        with Program.started(words, mountpoint, accelerated=True, options=promised) as program:
            yield program
    finally:
        SWITCH.write_text("0")


def _nodes(program: Program) -> int:
    """Return the number of passthrough_ll's descriptors, which has one for each inode it knows."""
    return len(os.listdir(f"/proc/{program.pid}/fd"))


@pytest.mark.parametrize("channels", [False, True], ids=["without channels", "with channels"])
@pytest.mark.parametrize("asks", ["option", "environment"])
@pytest.mark.parametrize("on", [False, True], ids=["without rings", "with rings"])
def test_handlers_answer_for_a_daemon_that_takes_io_uring_where_the_module_has_it(
    on: bool,
    asks: str,
    channels: bool,
    source: Path,
    mountpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _efuse(source, mountpoint, monkeypatch, on=on, channels=channels, asks=asks) as program:
        os.stat(mountpoint / "file")
        before = program.usage()
        rings = ring.delivered(program.pid)
        assert len(rings) == 2 * on
        assert Connection(program.number).io_uring is on
        files = _read_and_written(mountpoint, source)
        for _ in range(2):
            assert all(os.stat(mountpoint / name) for name in os.listdir(mountpoint))
        counted, came = program.usage(), sum(ring.delivered(program.pid)) - sum(rings)
        assert counted.sample is not None and counted.sample.total.hits > files
        # The device only carries requests without replies.
        sent = counted.total - before.total
        assert (came == sent) if on else (came == 0)
        known = _nodes(program)
        assert known > files
        Path("/proc/sys/vm/drop_caches").write_text("2")
        eventually(lambda: _nodes(program) <= known - files, "the daemon was told to forget")


def test_daemon_on_io_uring_is_sent_each_open_and_its_own_handles(
    source: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _efuse(
        source, mountpoint, monkeypatch, on=True, channels=False, lazy_open=True
    ) as program:
        connection = Connection(program.number)
        assert (mountpoint / "file").read_bytes() == (source / "file").read_bytes()
        assert connection.io_uring
        assert connection.lazy_open
        known = _nodes(program)
        for _ in range(20):
            connection.invalidate()
            assert (mountpoint / "file").read_bytes() == (source / "file").read_bytes()
        assert connection.counts("stats/open")["hits"] == 0
        assert connection.counts("stats/read")["errors"] == 0
        eventually(lambda: _nodes(program) <= known, "each file was closed")


def test_daemon_that_does_not_ask_gets_no_rings(
    source: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libfuse's rings have one thread for each CPU, which may be fewer than the daemon needs."""
    with _efuse(source, mountpoint, monkeypatch, on=True, channels=True, asks="none") as program:
        _read_and_written(mountpoint, source)
        assert not ring.delivered(program.pid)
        assert not Connection(program.number).io_uring


@pytest.mark.parametrize("channels", [False, True], ids=["without channels", "with channels"])
def test_death_of_a_daemon_on_io_uring_ends_all_requests(
    channels: bool, source: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask_until_it_ends(number: int) -> int | None:
        try:
            for round in range(1_000_000):
                (mountpoint / f"{number}-{round % 50}").write_bytes(b"data")
        except OSError as error:
            return error.errno
        return None

    with _efuse(source, mountpoint, monkeypatch, on=True, channels=channels) as program:
        with ThreadPoolExecutor(3) as pool:
            asking = [pool.submit(ask_until_it_ends, number) for number in range(3)]
            try:
                eventually(lambda: sum(ring.delivered(program.pid)) > 200, "requests came")
            finally:
                program._process.kill()
            ended = {each.result() for each in asking}
        # A request in a ring is cancelled, and a later one finds no connection.
        assert None not in ended and ended <= {
            errno.ECANCELED,
            errno.ECONNABORTED,
            errno.ENOTCONN,
            errno.EIO,
        }
