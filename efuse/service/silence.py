# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tell whether a daemon has stopped to answer, from the kernel's counters.

Nothing is asked of the daemon: a call to a daemon that does not answer would not return.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from efuse.control import Connection
from efuse.errors import ControlError

__all__ = ["Silence"]

# A request may take so long while no other one is answered, in seconds.
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class _Answers:
    """What was answered when, by the daemon of a connection.

    :ivar connection: number of the connection.
    :ivar answered: requests that had been answered.
    :ivar seen_s: when this was first seen, in seconds.
    """

    connection: int
    answered: int
    seen_s: float


class Silence:
    """Remembers how many requests the daemon of each mount has answered.

    :param clock: returns the time in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, _Answers] = {}

    def is_silent(self, name: str, connection: int) -> bool:
        """Tell whether requests of a mount wait, and none was answered for a while.

        :param name: name of the mount.
        :param connection: number of its connection.
        """
        try:
            waiting, answered = _counts(connection)
        except ControlError:  # it has just ended
            waiting = answered = 0
        before = self._seen.get(name)
        now = _Answers(connection, answered, self._clock())
        if not waiting:
            self._seen.pop(name, None)
        elif before is None or before.connection != connection or before.answered != answered:
            self._seen[name] = now
        else:
            return now.seen_s - before.seen_s >= _PATIENCE_S
        return False

    def forget(self, name: str) -> None:
        """Forget a mount that is not looked at for a while."""
        self._seen.pop(name, None)


def _counts(number: int) -> tuple[int, int]:
    """Return how many requests wait, and how many have been answered.

    :raises ControlError: the connection has ended.
    """
    connection = Connection(number)
    waiting = connection.waiting
    if not waiting:
        return 0, 0
    sent = sum(connection.counts(f"stats/{opcode}")["daemon"] for opcode in connection.opcodes())
    return waiting, sent - waiting
