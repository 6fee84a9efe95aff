# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the kernel tells a file system, as an asynchronous iterator."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Self

import trio

from efuse.closing import Closing

if TYPE_CHECKING:  # it takes libbpf with it
    from efuse.bpf import Event, Listener

__all__ = ["Events"]


class Events(Closing):
    """Events of one mount, the oldest first: ``async for event in events``.

    Ends when the file system is unmounted or :meth:`close` is called; what was not read by then is
    dropped. A context manager. For use within one trio run, by one task at a time.

    :param listener: None: there is nothing to hear.
    """

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self._pending: deque[Event] = deque()
        self._waiting = False

    @property
    def lost(self) -> int:
        """How many events were dropped, since those before were not read in time."""
        return self._listener.lost if self._listener else 0

    @property
    def closed(self) -> bool:
        """Whether no more events will come."""
        return self._listener is None or self._listener.closed

    def close(self) -> None:
        """Listen no more; who waits for the next event sees the end. May be called again."""
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
        """Wait until there are events, or it is closed."""
        self._waiting = True
        try:
            await trio.lowlevel.wait_readable(listener.fileno())
        except trio.ClosedResourceError:
            pass
        finally:
            self._waiting = False

    def __del__(self) -> None:
        # Who left a loop has no use for more of them, and they are not free.
        self.close()
