# SPDX-License-Identifier: LGPL-2.1-or-later
"""Forward signals to a daemon, and report its end as a shell does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from efuse.errors import MountError, reason
from efuse.fs.ending import not_ignored

__all__ = ["Forwarding", "run_plain", "status_of"]


def run_plain(command: Sequence[str]) -> int:
    """Run *command* without eFuse, forward signals to it, and return its exit status.

    :raises MountError: the command cannot be started.
    """
    with Forwarding() as forwarding:
        try:
            process = subprocess.Popen(list(command))
        except OSError as error:
            raise MountError(
                f"{command[0]} cannot be started: {reason(error)}", hint="check the command"
            ) from error
        forwarding.to(process.send_signal)
        process.wait()
        return status_of(process)


def status_of(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a process that has ended, as a shell reports it.

    It is 128 + N after signal N.
    """
    status = process.returncode
    return 128 - status if status < 0 else status


class Forwarding:
    """Forward SIGINT, SIGTERM and SIGHUP to a daemon, instead of ending by them. A context manager.

    A signal that comes before the daemon is started is forwarded once it is. If the daemon is never
    started, this process gets the signal at the end of the block. A signal that this process
    ignores stays ignored.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._send: Callable[[int], None] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Forwarding:
        for number in not_ignored():
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._waiting:
            os.kill(os.getpid(), self._waiting[0])

    def to(self, send: Callable[[int], None]) -> None:
        """Forward signals, past and future ones, by calling *send* with the number of each."""
        self._send = send
        self._hand_on()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._waiting.append(number)
        self._hand_on()

    def _hand_on(self) -> None:
        while self._waiting and self._send is not None:
            # Another signal has interrupted this very loop, or the daemon has just been reaped.
            with contextlib.suppress(IndexError, ProcessLookupError):
                self._send(self._waiting.pop(0))
