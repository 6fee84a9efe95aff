# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the threads that fuzz one mount have in common."""

from __future__ import annotations

import abc
import errno
import threading
from collections import deque
from collections.abc import Callable
from random import Random

from tests.fuzz.counts import Counts

ENDED = (errno.ENODEV, errno.ECONNABORTED, errno.EPERM, errno.ENOTCONN)
"""Errors after which the connection has ended."""
REFUSED = (errno.EINVAL, errno.ENOENT, errno.EBADMSG, errno.EIO, errno.ENOMEM)
"""Errors with which the kernel may refuse a reply."""


def attempt(send: Callable[[], object]) -> None:
    """Send something that the kernel may refuse.

    :raises AssertionError: it failed with an error that no refusal has.
    """
    try:
        send()
    except OSError as error:
        assert error.errno in (*REFUSED, *ENDED), error


class Shared:
    """What the threads share.

    :ivar stop: set when they are to end.
    :ivar faults: what the kernel did that it must never do.
    :ivar polled: handles of polled files, for notifications.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.faults: list[str] = []
        self.polled: deque[int] = deque(maxlen=16)
        self._unanswered: dict[int, None] = {}
        self._lock = threading.Lock()

    def begin(self, unique: int) -> None:
        """Note a request that may be answered by the reply to another one."""
        with self._lock:
            self._unanswered[unique] = None

    def end(self, unique: int) -> None:
        """Note that a request is answered."""
        with self._lock:
            self._unanswered.pop(unique, None)

    def another(self, chance: Random) -> int | None:
        """Return the number of an unanswered request, or None."""
        with self._lock:
            return chance.choice([*self._unanswered]) if self._unanswered else None


class Fuzzer(abc.ABC):
    """What one thread does until the mount ends.

    :cvar PAUSE_S: time between two steps.
    """

    PAUSE_S = 0.0

    def __init__(self, shared: Shared, chance: Random) -> None:
        self._shared, self._chance = shared, chance

    def work(self) -> None:
        """Do one step after the other until the mount ends."""
        while not self._shared.stop.wait(self.PAUSE_S) and self.step():
            pass

    @abc.abstractmethod
    def step(self) -> bool:
        """Do one step; return whether the connection goes on."""

    @abc.abstractmethod
    def add_to(self, counts: Counts) -> None:
        """Add what it has done to *counts*. It has ended."""

    def close(self) -> None:  # noqa: B027 - most have none
        """Close its descriptors. It has ended."""
