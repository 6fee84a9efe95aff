# SPDX-License-Identifier: LGPL-2.1-or-later
"""Handle the signals that end a file system, from before its mount until after its unmount."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType

import trio

from efuse.errors import MountError

__all__ = ["GRACE_S", "Ending", "not_ignored", "not_mounted"]

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that unmount a file system."""

GRACE_S = 5.0
"""Time that each step of the unmount may take before the next step follows, in seconds."""


def not_ignored() -> list[signal.Signals]:
    """Return the signals of `ENDING_SIGNALS` that this process does not ignore.

    For example, nohup(1) makes a process ignore SIGHUP. A signal whose handler was not set by
    Python is left out, too. In any thread except the main one the list is empty, because Python
    lets only the main thread set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    return [n for n in ENDING_SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, None)]


def not_mounted(number: int) -> MountError:
    """Return the error for a mount that the signal *number* has interrupted."""
    return MountError(f"it is not mounted: {signal.Signals(number).name} arrived meanwhile (EINTR)")


class Ending:
    """Handle the signals that end a file system. A context manager, for use within trio.

    The first signal asks for an unmount. If the block has not ended `GRACE_S` later, the connection
    is aborted, so that callers get an error. If the block has not ended `GRACE_S` after that,
    because a handler does not return, the process exits. Each further signal starts the next of
    these steps immediately.

    In any thread except the main one, no signals are handled. A process that was forked within the
    block ends by the signal itself.

    :param abort: aborts the connection; called in a thread of its own.
    :ivar asked: set when the first signal has come.
    :ivar number: number of the first signal, None before it.
    """

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._pid = os.getpid()
        self._token = trio.lowlevel.current_trio_token()
        self._before: dict[int, object] = {}
        # A signal handler may interrupt any code of this thread. SimpleQueue.put() is reentrant.
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

        :raises MountError: a signal has come.
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
        """Wait for the end of the block. Return False if its time is over or a signal has come."""
        try:
            return self._taken.get(timeout=GRACE_S) is None
        except queue.Empty:
            return False
