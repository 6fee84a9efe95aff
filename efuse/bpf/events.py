# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read what happens in the kernel, as it happens: the ring buffer ``events``."""

from __future__ import annotations

import enum
import os
import select
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from efuse.bpf import libbpf
from efuse.bpf.maps import BpfMap
from efuse.closing import Closing
from efuse.control import PATHS
from efuse.errors import AttachError, NotSupportedError, reason

__all__ = ["EVENT_BYTES", "Event", "EventKind", "Listener"]

_EVENT = struct.Struct("=IHHQQQQQ")
EVENT_BYTES = _EVENT.size
"""Size of ``struct efuse_event``, in bytes."""

_MAPS = ("events", "listening", "lost")
_ELEMENT_0 = bytes(4)
_AT_ONCE = 256


class EventKind(enum.Enum):
    """``enum efuse_event_kind``."""

    EVICTED = 1
    """A block was evicted from the data cache to make room. It may have been void already."""

    EPOCH = 2
    """What the kernel knew of an inode or a name became void: it was changed or invalidated."""

    PATH = 3
    """READs of one kind (class of the file, and size) take another path than before."""


@dataclass(frozen=True)
class Event:
    """Something that happened in the kernel: ``struct efuse_event``.

    :ivar kind: type of the event.
    :ivar nodeid: nodeid of the inode, or of the directory if a name was invalidated.
    :ivar offset: start of the range in the file, in bytes.
    :ivar length: length of the range, in bytes. EVICTED: length of the block. EPOCH: 0 stands for
        the whole file. PATH: length of the READ at which the path changed.
    :ivar epoch: EVICTED: epoch of the block. EPOCH: the epoch that ended. PATH: 0.
    :ivar time_ns: time of the event, in ns of CLOCK_MONOTONIC.
    :ivar opcode: opcode of the request that caused the event (`efuse.opcodes`); 0 if a
        notification of the daemon caused it.
    :ivar arg: EPOCH caused by a notification: ``enum efuse_notify_code``. EPOCH caused by a
        request, and PATH: ``enum efuse_path``, see :attr:`path`.
    """

    kind: EventKind
    nodeid: int
    offset: int
    length: int
    epoch: int
    time_ns: int
    opcode: int = 0
    arg: int = 0

    @property
    def path(self) -> str | None:
        """One of ``efuse.control.PATHS``; None for EVICTED, and for EPOCH caused by a notification.

        EPOCH: the path that carried the request out. A WRITE by ``direct`` went to the backing
        file, and this event is the only trace of it that the daemon gets. PATH: the new path.
        """
        of_request = self.kind is EventKind.PATH or (self.kind is EventKind.EPOCH and self.opcode)
        return PATHS[self.arg - 1] if of_request else None

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the event in the bytes *raw*.

        :raises ValueError: the size is wrong, or the kind is unknown to this version.
        """
        if len(raw) != EVENT_BYTES:
            raise ValueError(f"an event has {EVENT_BYTES} bytes, not {len(raw)}")
        kind, opcode, arg, nodeid, offset, length, epoch, time_ns = _EVENT.unpack(raw)
        return cls(EventKind(kind), nodeid, offset, length, epoch, time_ns, opcode, arg)


class Listener(Closing):
    """Receive the events of one connection from now on. A context manager, for one thread.

    A connection can have one listener at a time. The kernel does not refuse a second one, but then
    each event reaches either listener, or both.

    :param maps: maps of the connection's attachment. The attachment may be closed afterwards.
    :raises NotSupportedError: the attached programs emit no events.
    :raises AttachError: the kernel does not let this process read the ring buffer.
    """

    def __init__(self, maps: Mapping[str, BpfMap[Any, Any]]) -> None:
        self._ring: libbpf.Ring | None = None
        self._lost = self._lost_before = 0
        missing = [name for name in _MAPS if name not in maps]
        if missing:
            raise NotSupportedError(
                f"the attached programs report no events: they have no map {missing[0]!r}",
                hint="attach the built-in handlers as well",
            )
        self._records: list[bytes] = []
        records = self._records

        def take(raw: bytes) -> bool:
            records.append(raw)
            return len(records) < _AT_ONCE

        self._fds = {name: os.dup(maps[name].fd) for name in _MAPS}
        try:
            self._ring = libbpf.Ring(self._fds["events"], take)
            # Discard what an earlier listener did not read.
            while self._taken():
                pass
            self._lost_before = self._dropped()
            self._listen(True)
        except OSError as error:
            self.close()
            raise AttachError(f"cannot listen to events: {reason(error)}") from error

    def fileno(self) -> int:
        """Return a descriptor that is readable while there are events.

        :raises ValueError: the listener is closed.
        """
        if self._ring is None:
            raise ValueError("the listener is closed")
        return self._ring.fileno()

    @property
    def closed(self) -> bool:
        """Whether the listener has been closed."""
        return self._ring is None

    @property
    def lost(self) -> int:
        """Number of events dropped since the listener was opened: the ring buffer was full."""
        if self._ring is not None:
            self._lost = self._dropped() - self._lost_before
        return self._lost

    def read(self) -> list[Event]:
        """Return the waiting events, oldest first, at most 256. Do not wait for any."""
        return [Event.decode(raw) for raw in self._taken()]

    def wait(self, timeout_s: float | None = None) -> list[Event]:
        """Wait for events and return them; return an empty list if the timeout expires.

        :param timeout_s: timeout in seconds; None waits without limit.
        """
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        poll.poll(None if timeout_s is None else timeout_s * 1000)
        return self.read()

    def close(self) -> None:
        """Stop listening. Further calls do nothing."""
        if self._ring is not None:
            self._lost = self.lost
            self._listen(False)
            self._ring.close()
            self._ring = None
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def _taken(self) -> list[bytes]:
        if self._ring is None:
            return []
        self._ring.consume()
        taken = self._records[:]
        self._records.clear()
        return taken

    def _dropped(self) -> int:
        return int.from_bytes(libbpf.map_lookup(self._fds["lost"], _ELEMENT_0, 8) or b"", "little")

    def _listen(self, on: bool) -> None:
        libbpf.map_update(self._fds["listening"], _ELEMENT_0, int(on).to_bytes(4, "little"))
