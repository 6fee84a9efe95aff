# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether a daemon that has ended is started again, and when. Nothing here waits or looks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["POLICIES", "End", "Restarts"]

POLICIES = ("always", "on-failure")
"""When a daemon is started again: whenever its mounts are left, or only after a failure."""

# How long to wait before each start, in seconds. The last one is repeated.
_DELAYS_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
# A daemon is believed to work that has served for so long, and for longer than the wait before.
_PROVEN_S = 1.0


@dataclass(frozen=True, slots=True)
class End:
    """The end of a daemon.

    :ivar waiting: whether each of its mounts waits for a successor.
    :ivar was_asked: whether it was asked to end.
    :ivar failed: whether it was ended by a signal, or has another exit status than 0.
    :ivar served_s: how long it has served, in seconds.
    """

    waiting: bool
    was_asked: bool
    failed: bool
    served_s: float


class Restarts:
    """Decides about starts, with growing delays while the daemon does not work.

    :param policy: one of `POLICIES`; None: it is never started again.
    :ivar failures: how often in a row the daemon has ended before it was proven.
    """

    def __init__(self, policy: str | None) -> None:
        self._policy = policy
        self._delay_s = 0.0
        self.failures = 0

    def delay_after(self, end: End) -> float | None:
        """Return how long to wait before the daemon is started again, in seconds.

        :returns: None if it is not started again.
        """
        if self._policy is None or end.was_asked or not end.waiting:
            return None
        if self._policy == "on-failure" and not end.failed:
            return None
        if end.served_s >= max(_PROVEN_S, self._delay_s):
            self.failures = 0
        self.failures += 1
        self._delay_s = _DELAYS_S[min(self.failures, len(_DELAYS_S)) - 1]
        return self._delay_s
