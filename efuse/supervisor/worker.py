# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process that does one job for the supervisor, as the supervisor sees it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket

from efuse.supervisor import reports

__all__ = ["Worker"]


class Worker:
    """A process that does one job, and then ends.

    It may wait for any daemon, so it is only ever polled.

    :param pidfd: a descriptor of it, which becomes readable when it has ended (pidfd_open(2)).
    :param to: socket to it.
    :ivar process: its id.
    """

    def __init__(self, process: int, pidfd: int, to: socket.socket) -> None:
        self.process, self._pidfd, self._socket = process, pidfd, to
        self._has_hung_up = False

    @property
    def watched(self) -> int:
        """The descriptor that becomes readable next, with a report or at the end."""
        return self._pidfd if self._has_hung_up else self._socket.fileno()

    @property
    def end(self) -> int:
        """The descriptor that becomes readable at the end."""
        return self._pidfd

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, so that nothing of it is left."""
        return _is_readable(self._pidfd, 0)

    def received(self) -> tuple[reports.Report | int | None, list[int]]:
        """Return a report with its descriptors, or None if there is none now.

        :raises OSError: the report cannot be received, see `reports.receive`.
        """
        if self._has_hung_up or not _is_readable(self._socket.fileno(), 0):
            return None, []
        report, fds = reports.receive(self._socket)
        self._has_hung_up = report is None
        return report, fds

    def tell(self, number: int) -> None:
        """Tell the process to go on (0), or that the call is to fail with an errno."""
        with contextlib.suppress(OSError):  # it has ended
            reports.send(self._socket, number)

    def kill(self) -> None:
        """Kill the process. It may end much later."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def await_end(self, most_s: float) -> bool:
        """Wait for the end of the process, but not longer than that; tell whether it has ended."""
        return _is_readable(self._pidfd, most_s)

    def close(self) -> None:
        """Forget the process."""
        self._socket.close()
        os.close(self._pidfd)


def _is_readable(fd: int, most_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(most_s * 1000))
