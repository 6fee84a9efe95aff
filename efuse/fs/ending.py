# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signals that end a file system, from before it is mounted until it is unmounted."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType

import trio

from efuse.errors import MountError

__all__ = ["ENDING_SIGNALS", "GRACE_S", "Ending", "not_ignored", "not_mounted"]

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask for the end of a file system."""

GRACE_S = 5.0
"""How many seconds each step of the end may take before the next one is made."""


def not_ignored() -> list[signal.Signals]:
    """Return those of `ENDING_SIGNALS` that this process does not ignore; nohup ignores SIGHUP.

    Nor one that something else than Python takes. None elsewhere than in the main thread: only that
    may set what a signal does.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    return [n for n in ENDING_SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, None)]


def not_mounted(number: int) -> MountError:
    """Return the error of a mount that the signal *number* has ended before it was complete."""
    return MountError(f"it is not mounted: {signal.Signals(number).name} came meanwhile (EINTR)")


class Ending:
    """Takes the signals that end a file system; a context manager within trio.

    The first signal asks for an unmount. If the block has not ended `GRACE_S` later, the connection
    is aborted, so that callers get an error. If the block has not ended `GRACE_S` after that, since
    a handler that does not return holds the process, the process exits. A further signal makes the
    next of these steps at once. Elsewhere than in the main thread there are no signals. A process
    that was forked meanwhile ends by a signal, and does none of this.

    :param abort: aborts the connection. It is called in a thread of its own.
    """

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._pid = os.getpid()
        self._token = trio.lowlevel.current_trio_token()
        self._before: dict[int, object] = {}
        # The handler may interrupt any code of this thread: it only puts, which takes no lock.
        self._taken: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self.asked = trio.Event()
        self.number: int | None = None

    def __enter__(self) -> Ending:
        numbers = not_ignored()
        if numbers:
            self._watcher.start()
        for number in numbers:
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._watcher.is_alive():
            self._taken.put(None)
            self._watcher.join()

    def check(self) -> None:
        """Fail if a signal has come.

        :raises MountError: one has.
        """
        if self.number is not None:
            raise not_mounted(self.number)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.number is None:
            self.number = number
            self._token.run_sync_soon(self.asked.set)
        self._taken.put(number)

    def _watch(self) -> None:
        first = self._taken.get()
        if first is None or self._has_ended():
            return
        try:
            self._abort()
        finally:
            if not self._has_ended():
                os._exit(128 + first)

    def _has_ended(self) -> bool:
        """Wait for the block's end; False when the time for it is over or a signal has come."""
        try:
            return self._taken.get(timeout=GRACE_S) is None
        except queue.Empty:
            return False
