# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test events of blocks, inodes and names, and that no events are sent without a listener."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import efuse
from efuse import opcodes
from efuse.bpf import Event, EventKind, Listener, libbpf
from efuse.fs import Passthrough
from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Mount, monotonic_ns
from tests.guest.support.data_cache import cached
from tests.guest.support.file_data import BLOCK, SIZE, fill, read, read_direct, write
from tests.guest.support.serving import served

INVAL_INODE, INVAL_ENTRY, DELETE, STORE = 1, 2, 3, 4


@contextlib.contextmanager
def listening(m: Mount) -> Iterator[Listener]:
    assert m.attachment
    with Listener(m.attachment.maps) as listener:
        yield listener


def word(m: Mount, name: str) -> int:
    """Return element 0 of an array map."""
    assert m.attachment
    words: int = m.attachment.maps[name][0]
    return words


def of_kind(listener: Listener, kind: EventKind) -> list[Event]:
    return [event for event in listener.read() if event.kind is kind]


def test_eviction_of_a_block_is_an_event(mountpoint: Path) -> None:
    """Each evicted block is one event, and nothing else is. The ninth block of a set evicts one."""
    with cached(mountpoint, capacity={"blocks": 8}) as m, listening(m) as listener:
        begun = monotonic_ns()
        data = fill("h", 30 * BLOCK + 5)
        make(m, "h", data)
        nodeid = m.call("nodeid", "h")
        before = m.connection.evicted
        assert read_direct(m / "h", 1 << 17) == data
        evicted = of_kind(listener, EventKind.EVICTED)
        assert len(evicted) == m.connection.evicted - before == 31 - 8
        assert m.attachment
        kept = {tag.block for tag in m.attachment.maps["tags"].slots()}  # type: ignore[attr-defined]
        assert {event.offset // BLOCK for event in evicted} == set(range(31)) - kept
        assert len({event.offset for event in evicted}) == len(evicted)
        for event in evicted:
            assert (event.nodeid, event.opcode, event.arg) == (nodeid, opcodes.number("read"), 0)
            assert event.length == min(BLOCK, len(data) - event.offset)
            assert begun < event.time_ns < monotonic_ns()
            assert 0 < event.epoch <= m.connection.epoch
        # The events are true: evicted blocks are read from the daemon again, the others are not.
        m.log()
        gone = evicted[-1].offset
        assert read_direct(m / "h", BLOCK, gone) == data[gone : gone + BLOCK]
        assert m.call("reads") and "read" in m.asked()
        there = next(iter({t.block for t in m.attachment.maps["tags"].slots()} - {gone // BLOCK}))  # type: ignore[attr-defined]
        with m.answered("read"):
            part = data[there * BLOCK : (there + 1) * BLOCK]
            assert read_direct(m / "h", BLOCK, there * BLOCK) == part


def test_notification_is_an_event(mountpoint: Path) -> None:
    with cached(mountpoint) as m:
        os.mkdir(m / "d")
        make(m, "d/x", b"x")
        os.stat(m / "d/x")
        nodeid, directory = m.call("nodeid", "f"), m.call("nodeid", "d")
        with listening(m) as listener:
            epochs = [m.connection.epoch]
            told = []
            for call, args in (
                ("inval_inode", ("f",)),
                ("store", ("f", 0, b"s" * BLOCK)),
                ("inval_entry", ("d", b"x")),
            ):
                m.call(call, *args)
                told += of_kind(listener, EventKind.EPOCH)
                epochs.append(m.connection.epoch)
            assert [(event.nodeid, event.arg) for event in told] == [
                (nodeid, INVAL_INODE),
                (nodeid, STORE),
                (directory, INVAL_ENTRY),
            ]
            # A FORGET of the inode may follow the last notification, and is another change.
            for event, before, after in zip(told, epochs, epochs[1:], strict=False):
                assert before < event.epoch <= after
            assert {(e.opcode, e.offset, e.length) for e in told} == {(0, 0, 0)}


def test_change_by_a_request_is_an_event(mountpoint: Path) -> None:
    with cached(mountpoint) as m:
        make(m, "g", fill("g"))
        nodeid, target = m.call("nodeid", "f"), m.call("nodeid", "g")
        with listening(m) as listener:

            def told() -> list[tuple[str, int, int, int]]:
                found = of_kind(listener, EventKind.EPOCH)
                return [(opcodes.name(e.opcode), e.nodeid, e.offset, e.length) for e in found]

            write(m / "f", b"w" * 100, 3 * BLOCK + 5, os.O_DIRECT)
            assert told() == [("write", nodeid, 3 * BLOCK + 5, 100)]
            os.truncate(m / "f", 5000)
            assert told() == [("setattr", nodeid, 0, 0)]
            one, two = os.open(m / "f", os.O_RDONLY), os.open(m / "g", os.O_RDWR)
            assert os.copy_file_range(one, two, BLOCK, 0, 0) == BLOCK
            assert (m.copy_opcode, target, 0, 0) in told()
            os.close(one)
            os.close(two)
            os.close(os.open(m / "f", os.O_WRONLY | os.O_TRUNC))
            assert told() == [("open", nodeid, 0, 0)]
            # These requests change no data.
            os.chmod(m / "f", 0o600)
            assert read_direct(m / "g", SIZE)[:BLOCK] == fill("d")[:BLOCK]
            os.link(m / "f", m / "l")
            os.unlink(m / "l")
            os.listdir(m.path)
            assert told() == []


def _map_write(path: str, data: bytes, offset: int) -> None:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[offset : offset + len(data)] = data
        view.flush()


def test_write_in_the_kernel_is_an_event(mountpoint: Path, lower: Path) -> None:
    """Events are the daemon's only notice of the write. They have the changed ranges."""
    with cached(mountpoint) as m:
        before = fill("b")
        path = Path(backing(lower, before))
        whole(m, str(path), write=True)
        nodeid = m.call("nodeid", "f")
        m.log()
        with listening(m) as listener:
            for at, length, do in (
                (3 * BLOCK + 5, 100, lambda data, at: write(m / "f", data, at)),
                (BLOCK, 2 * BLOCK, lambda data, at: write(m / "f", data, at, os.O_DIRECT)),
                (SIZE, 1000, lambda data, at: write(m / "f", data, at)),
                (5 * BLOCK, 7, lambda data, at: _map_write(m / "f", data, at)),
            ):
                do(fill("w", length), at)
                after = path.read_bytes()
                told = of_kind(listener, EventKind.EPOCH)
                assert told
                assert {(e.nodeid, opcodes.name(e.opcode)) for e in told} == {(nodeid, "write")}
                assert {e.path for e in told} == {"direct"}
                assert after[at : at + length] == fill("w", length)
                # The events cover every changed byte.
                changed = {n for n, byte in enumerate(after) if before[n : n + 1] != bytes([byte])}
                assert changed <= {n for e in told for n in range(e.offset, e.offset + e.length)}
                assert m.connection.epoch >= told[-1].epoch > 0
                before = after
            assert "write" not in m.asked()
            # If nothing is mapped, the daemon has written.
            make(m, "g", fill("g"))
            listener.read()
            write(m / "g", b"x", 0, os.O_DIRECT)
            assert [e.path for e in of_kind(listener, EventKind.EPOCH)] == ["daemon"]


def test_no_events_are_recorded_without_a_listener(mountpoint: Path) -> None:
    with cached(mountpoint, capacity={"blocks": 8}) as m:
        data = fill("h", 64 * BLOCK)
        make(m, "h", data)
        assert m.attachment

        def bustle() -> None:
            assert read_direct(m / "h", len(data)) == data
            write(m / "h", data[:BLOCK], 0, os.O_DIRECT)
            m.call("inval_inode", "h")

        bustle()
        assert word(m, "listening") == 0
        # Read the records of the ring directly, whether or not there is a listener.
        records: list[bytes] = []
        ring = libbpf.Ring(m.attachment.maps["events"].fd, lambda raw: not records.append(raw))
        try:
            ring.consume()
            assert records == []
            with listening(m):
                assert word(m, "listening") == 1
            assert word(m, "listening") == 0
            bustle()
            ring.consume()
            assert records == []
            assert word(m, "lost") == 0
        finally:
            ring.close()


def test_full_ring_counts_lost_events(mountpoint: Path, lower: Path) -> None:
    """The kernel carries out the writes, because a daemon would take ten times as long."""
    with cached(mountpoint) as m:
        assert m.attachment
        nodeid = m.call("nodeid", "f")
        whole(m, backing(lower, fill("b")), write=True)
        fd = os.open(m / "f", os.O_WRONLY | os.O_DIRECT)
        with listening(m) as listener:
            count = 5000
            for _ in range(count):
                os.pwrite(fd, b"w", 0)
            found: list[Event] = []
            while more := listener.read():
                assert len(more) <= 256
                found += more
            # There are 256 KiB for events of 56 bytes.
            assert 4000 < len(found) < 262144 // 56 + 1
            assert listener.lost == count - len(found)
            assert {(e.nodeid, e.offset, e.length) for e in found} == {(nodeid, 0, 1)}
            epochs = [event.epoch for event in found]
            assert epochs == sorted(set(epochs))
            lost = listener.lost
            os.pwrite(fd, b"w", 7)
            assert [(e.offset, e.length) for e in listener.read()] == [(7, 1)]
            assert listener.lost == lost
        assert listener.lost == lost
        with listening(m) as again:
            assert (again.lost, again.read()) == (0, [])
        os.close(fd)


def test_wait_ends_with_an_event_or_after_the_timeout(mountpoint: Path) -> None:
    with cached(mountpoint) as m, listening(m) as listener:
        assert listener.wait(0.01) == []
        m.call("inval_inode", "f")
        (event,) = listener.wait()
        assert event.kind is EventKind.EPOCH


def test_listener_gets_events_of_its_mount_only(mountpoint: Path) -> None:
    first, second = mountpoint / "1", mountpoint / "2"
    first.mkdir()
    second.mkdir()
    with cached(first) as one, cached(second) as two, listening(one) as a, listening(two) as b:
        one.call("inval_inode", "f")
        assert len(a.read()) == 1
        assert b.read() == []
        two.call("inval_inode", "f")
        assert a.read() == []
        assert len(b.read()) == 1


# Events in a file system of the package, which awaits them


class _Watched(Passthrough):
    """A pass-through that maps no backing files, so that all reads go through the data cache."""

    def backing(self, *args: Any, **kwargs: Any) -> bool:
        return False


async def _collect(events: efuse.fs.Events, found: list[Event]) -> None:
    async for event in events:
        found.append(event)


def _use(path: Path, data: bytes) -> None:
    assert read(str(path)) == data


def test_file_system_receives_events_until_unmount(mountpoint: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    data = fill("p", 40 * BLOCK)
    (source / "p").write_bytes(data)
    found: list[Event] = []

    async def main() -> None:
        operations = _Watched(str(source))
        operations.efuse_options = efuse.Options(consistency="exclusive", capacity={"blocks": 8})
        async with served(operations, mountpoint) as nursery:
            assert operations.efuse.maps["listening"][0] == 0
            events = operations.events()
            with pytest.raises(efuse.EfuseError, match="EBUSY"):
                operations.events()
            nursery.start_soon(_collect, events, found)
            await trio.to_thread.run_sync(_use, mountpoint / "p", data)
            inode = (await trio.to_thread.run_sync(os.stat, mountpoint / "p")).st_ino
            with trio.fail_after(60):
                while len(found) < 32:
                    await trio.sleep(0.01)
                await operations.invalidate(inode)
                while found[-1].kind is not EventKind.EPOCH:
                    await trio.sleep(0.01)
        assert events.closed

    trio.run(main)
    evicted = [event.offset for event in found if event.kind is EventKind.EVICTED]
    assert len(evicted) == len(set(evicted)) == 32
    assert found[-1].arg == INVAL_INODE
    assert found[-1].time_ns <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)
