# SPDX-License-Identifier: LGPL-2.1-or-later
"""The events of a mount, as an asynchronous iterator."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Self

import trio

from efuse.closing import Closing

if TYPE_CHECKING:  # plain FUSE does without efuse.bpf
    from efuse.bpf import Event, Listener

__all__ = ["Events"]


class Events(Closing):
    """Iterate over the events of one mount, the oldest first: ``async for event in events``.

    The iteration ends when the file system is unmounted or :meth:`close` is called. Events that
    were not read by then are dropped. A context manager, for one task at a time within one trio
    run.

    :param listener: the source of the events. None: the mount has no events.
    """

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self._pending: deque[Event] = deque()
        self._waiting = False

    @property
    def lost(self) -> int:
        """Number of events that were dropped because the earlier ones were not read in time."""
        return self._listener.lost if self._listener else 0

    @property
    def closed(self) -> bool:
        """Whether no more events will come."""
        return self._listener is None or self._listener.closed

    def close(self) -> None:
        """Stop listening. This ends the iteration of a waiting task. Further calls do nothing."""
        if self.closed or self._listener is None:
            return
        if self._waiting:
            trio.lowlevel.notify_closing(self._listener.fileno())
        self._listener.close()
        self._pending.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        await trio.lowlevel.checkpoint()
        while not self._pending:
            if self.closed or self._listener is None:
                raise StopAsyncIteration
            await self._readable(self._listener)
            self._pending.extend(self._listener.read())
        return self._pending.popleft()

    async def _readable(self, listener: Listener) -> None:
        """Wait until there are events, or *listener* is closed."""
        self._waiting = True
        try:
            await trio.lowlevel.wait_readable(listener.fileno())
        except trio.ClosedResourceError:
            pass
        finally:
            self._waiting = False

    def __del__(self) -> None:
        # A program that has left its loop reads no more events, and recording them has a cost.
        self.close()
