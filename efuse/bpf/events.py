# SPDX-License-Identifier: LGPL-2.1-or-later
"""What happened in the kernel, as it happens: the map ``events``."""

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
"""Size of ``struct efuse_event``."""

_MAPS = ("events", "listening", "lost")
_ELEMENT_0 = bytes(4)
_AT_ONCE = 256


class EventKind(enum.Enum):
    """``enum efuse_event_kind``."""

    EVICTED = 1
    """A block made room for another in the data cache. It may have been void already."""

    EPOCH = 2
    """What the kernel knew of an inode or a name is void: it was changed, or invalidated."""

    PATH = 3
    """READs of a kind (of this file's class and of this size) take another path than before."""


@dataclass(frozen=True)
class Event:
    """Something that happened in the kernel: ``struct efuse_event``.

    :ivar kind: what.
    :ivar nodeid: the inode; with a notification of a name, its directory.
    :ivar offset: in the file, in bytes.
    :ivar length: bytes from there. EVICTED: how many the block had. EPOCH: 0 is all. PATH: of
        the READ at which it changed.
    :ivar epoch: EVICTED: the one that the block carried; EPOCH: the one at which it ended.
    :ivar time_ns: when, by CLOCK_MONOTONIC.
    :ivar opcode: of the request that brought it about (`efuse.opcodes`); 0: a notification.
    :ivar arg: EPOCH of a notification: ``enum efuse_notify_code``; else see :attr:`path`.
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
        """One of ``efuse.control.PATHS``; None of a notification and of a block.

        EPOCH: who has carried the request out. A WRITE by ``direct`` is in the backing file, and
        this is all that the daemon hears of it. PATH: the path that is taken from now on.
        """
        of_request = self.kind is EventKind.PATH or (self.kind is EventKind.EPOCH and self.opcode)
        return PATHS[self.arg - 1] if of_request else None

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the event that *raw* holds.

        :raises ValueError: it has another size, or is of a kind that is not known here.
        """
        if len(raw) != EVENT_BYTES:
            raise ValueError(f"an event has {EVENT_BYTES} bytes, not {len(raw)}")
        kind, opcode, arg, nodeid, offset, length, epoch, time_ns = _EVENT.unpack(raw)
        return cls(EventKind(kind), nodeid, offset, length, epoch, time_ns, opcode, arg)


class Listener(Closing):
    """Hears of what happens on one connection from now on. A context manager.

    There can be one at a time: nothing keeps a second process from listening, but then each
    event reaches one of them or both. For use by one thread.

    :param maps: of the connection's attachment; they may be closed meanwhile.
    :raises NotSupportedError: its programs tell nothing.
    :raises AttachError: the kernel does not let this process read.
    """

    def __init__(self, maps: Mapping[str, BpfMap[Any, Any]]) -> None:
        self._ring: libbpf.Ring | None = None
        self._lost = self._lost_before = 0
        missing = [name for name in _MAPS if name not in maps]
        if missing:
            raise NotSupportedError(
                f"the attached programs tell no events: they have no map {missing[0]!r}",
                hint="attach the built-in handlers, too",
            )
        self._records: list[bytes] = []
        records = self._records

        def take(raw: bytes) -> bool:
            records.append(raw)
            return len(records) < _AT_ONCE

        self._fds = {name: os.dup(maps[name].fd) for name in _MAPS}
        try:
            self._ring = libbpf.Ring(self._fds["events"], take)
            # What a former listener left is not news.
            while self._taken():
                pass
            self._lost_before = self._dropped()
            self._listen(True)
        except OSError as error:
            self.close()
            raise AttachError(f"cannot listen to events: {reason(error)}") from error

    def fileno(self) -> int:
        """Return the descriptor that is readable while there are events.

        :raises ValueError: it is closed.
        """
        if self._ring is None:
            raise ValueError("the listener is closed")
        return self._ring.fileno()

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._ring is None

    @property
    def lost(self) -> int:
        """How many events were dropped since it began, since nobody had read those before."""
        if self._ring is not None:
            self._lost = self._dropped() - self._lost_before
        return self._lost

    def read(self) -> list[Event]:
        """Return the events that are there, the oldest first, 256 at most; do not wait."""
        return [Event.decode(raw) for raw in self._taken()]

    def wait(self, timeout_s: float | None = None) -> list[Event]:
        """Wait until there are events and return them; nothing when the time is over.

        :param timeout_s: seconds; None: for ever.
        """
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        poll.poll(None if timeout_s is None else timeout_s * 1000)
        return self.read()

    def close(self) -> None:
        """Listen no more: nothing is told from now on. May be called again."""
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
