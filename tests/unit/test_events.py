# SPDX-License-Identifier: LGPL-2.1-or-later
"""Events: parsed from bytes, and as an iterator that ends when it should."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

import efuse
from efuse import locations
from efuse.bpf import Attachment
from efuse.bpf.events import EVENT_BYTES, Event, EventKind, Listener
from efuse.bpf.maps import Ring, mapping
from efuse.bpf.spec import MAP_RINGBUF, MapSpec
from efuse.control import Connection
from efuse.errors import MountError, NotSupportedError
from efuse.fs.acceleration import Acceleration
from efuse.fs.events import Events

HEADER = locations.data("kernel_patches") / "include" / "uapi" / "linux" / "efuse.h"


def event(nodeid: int = 5) -> Event:
    return Event(EventKind.EVICTED, nodeid, 8192, 4096, 77, 123456789, opcode=15)


def raw(kind: int = 1, nodeid: int = 5) -> bytes:
    return struct.pack("=IHHQQQQQ", kind, 15, 0, nodeid, 8192, 4096, 77, 123456789)


class _Listener:
    """A listener that gets its events from the test."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.coming: list[Event] = []
        self.closed = False
        self.lost = 3

    def fileno(self) -> int:
        return self._read

    def tell(self, *events: Event) -> None:
        self.coming += events
        os.write(self._write, b"x")

    def read(self) -> list[Event]:
        if self.closed:
            return []
        os.read(self._read, 1)
        coming, self.coming = self.coming, []
        return coming

    def close(self) -> None:
        self.closed = True
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def listener() -> Iterator[_Listener]:
    listener = _Listener()
    yield listener
    if not listener.closed:
        listener.close()


def test_decode_takes_each_field() -> None:
    fields = (3, 16, 2, 1 << 63, 1, 1 << 40, (1 << 64) - 1, 9)
    assert Event.decode(struct.pack("=IHHQQQQQ", *fields)) == Event(
        EventKind.PATH, 1 << 63, 1, 1 << 40, (1 << 64) - 1, 9, opcode=16, arg=2
    )


@pytest.mark.parametrize("bad", [b"", raw()[:-1], raw() + b"\0", raw(kind=0), raw(kind=4)])
def test_decode_of_a_malformed_event_fails(bad: bytes) -> None:
    with pytest.raises(ValueError):
        Event.decode(bad)


def test_kinds_and_size_are_those_of_the_header() -> None:
    text = HEADER.read_text()
    kinds = re.findall(r"EFUSE_EVENT_(\w+)\s*= (\d+)", text)
    assert [(name, int(number)) for name, number in kinds] == [(k.name, k.value) for k in EventKind]
    (body,) = re.findall(r"struct efuse_event \{(.*?)\};", text, re.DOTALL)
    bits = [int(width) for width in re.findall(r"__u(\d+)", body)]
    assert sum(bits) // 8 == EVENT_BYTES
    assert all(sum(bits[:i]) % bits[i] == 0 for i in range(len(bits)))


def test_events_come_in_order(listener: _Listener) -> None:
    async def main() -> None:
        events: Any = Events(listener)  # type: ignore[arg-type]
        listener.tell(event(1), event(2))
        assert [(await anext(events)).nodeid for _ in range(2)] == [1, 2]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_nodeid_is, events, 3)
            await trio.testing.wait_all_tasks_blocked()
            listener.tell(event(3))
        assert events.lost == 3
        events.close()

    trio.run(main)


async def _nodeid_is(events: Events, nodeid: int) -> None:
    assert (await anext(events)).nodeid == nodeid


async def _reads_to_the_end(events: Events) -> None:
    async for _ in events:
        raise AssertionError("nothing was told")


def test_close_ends_a_waiting_reader(listener: _Listener) -> None:
    async def main() -> None:
        with Events(listener) as events:  # type: ignore[arg-type]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_reads_to_the_end, events)
                await trio.testing.wait_all_tasks_blocked()
                events.close()
                events.close()

    trio.run(main)
    assert listener.closed


def test_leaving_the_loop_ends_listening(listener: _Listener) -> None:
    async def main() -> None:
        listener.tell(event(1), event(2))
        async for found in Events(listener):  # type: ignore[arg-type]
            assert found.nodeid == 1
            break

    trio.run(main)
    assert listener.closed


def test_a_cancelled_wait_can_be_repeated(listener: _Listener) -> None:
    async def main() -> None:
        with Events(listener) as events:  # type: ignore[arg-type]
            with trio.move_on_after(0):
                await anext(events)
            listener.tell(event(7))
            assert (await anext(events)).nodeid == 7

    trio.run(main)


def test_events_without_acceleration_end_immediately() -> None:
    async def main() -> None:
        with efuse.Operations().events() as events:
            await _reads_to_the_end(events)
            assert events.lost == 0

    trio.run(main)


def test_a_second_listener_of_a_mount_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    attachment = SimpleNamespace(maps={}, close=lambda: None)
    monkeypatch.setattr("efuse.bpf.Listener", lambda _maps: _Listener())
    acceleration = Acceleration(cast(Connection, None), cast(Attachment, attachment))
    first = acceleration.events()
    with pytest.raises(MountError, match="EBUSY"):
        acceleration.events()
    first.close()
    second = acceleration.events()
    acceleration.close()
    assert second.closed


def test_listening_to_programs_without_events_fails() -> None:
    with pytest.raises(NotSupportedError, match="events"):
        Listener({})


def test_ring_buffer_has_no_elements() -> None:
    ring = mapping(-1, "events", MapSpec(MAP_RINGBUF, 0, 0, 4096))
    assert isinstance(ring, Ring)
    assert len(ring) == 0
    assert ring.read_all() == {}
