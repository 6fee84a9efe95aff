# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process that forks others for the supervisor, which cannot do so itself.

A fork has all descriptors of its parent. If one of them is a file of a mount whose daemon waits for
an answer, closing it waits for that daemon (FUSE_FLUSH), and so does the end of the process. A
program that runs a daemon, such as `efuse bench`, may have such files open. This process is forked
before the daemon has mounted anything, and has no descriptors but its own.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Sequence

from efuse.display import shown
from efuse.errors import reason
from efuse.fs.forking import forked

__all__ = ["Spawner"]

_log = logging.getLogger("efuse.fs")
_LARGEST, _ALL_FDS = 1 << 16, 1 << 30

Job = Callable[[list[int]], int]
"""What a forked process does, with the descriptors sent to it; it ends with the result. Pickled."""


class Spawner:
    """Forks processes.

    :param kept: descriptors that these processes have under the same numbers.
    :raises OSError: no process can be made.
    :ivar process: id of the process that forks them.
    """

    def __init__(self, *kept: int) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with its:
            self.process = forked(lambda: _serve(its, kept))

    def start(self, job: Job, fds: Sequence[int] = ()) -> int:
        """Start a job in a process of its own.

        :returns: a descriptor of the process (see pidfd_open(2)).
        :raises OSError: no process can be made.
        """
        with self._lock:
            socket.send_fds(self._socket, [pickle.dumps(job)], fds)
            told, got, _, _ = socket.recv_fds(self._socket, 16, 1, socket.MSG_CMSG_CLOEXEC)
        if not got:
            number = int(told or str(errno.EAGAIN))
            raise OSError(number, os.strerror(number))
        return got[0]

    def close(self) -> None:
        """End the process that forks others; those go on."""
        self._socket.close()
        with contextlib.suppress(ChildProcessError):  # it was reaped with all others
            os.waitpid(self.process, 0)


def _serve(requests: socket.socket, kept: Sequence[int]) -> int:
    """Fork a process for each request, until the supervisor has ended."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Only the supervisor ends them. A terminal sends its signals to the whole group.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    numbers = sorted({0, 1, 2, requests.fileno(), *kept} - {-1})
    for before, after in itertools.pairwise([*numbers, _ALL_FDS]):
        os.closerange(before + 1, after)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _LARGEST, 2, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return 0
        _reap()
        try:
            process = forked(lambda: _do(pickle.loads(data), fds, requests))  # noqa: B023
            descriptor = os.pidfd_open(process)
        except OSError as error:
            requests.send(str(error.errno).encode())
        else:
            socket.send_fds(requests, [b"0"], [descriptor])
            os.close(descriptor)
        for fd in fds:
            os.close(fd)


def _do(job: Job, fds: list[int], requests: socket.socket) -> int:
    requests.close()
    try:
        return job(fds)
    except OSError as error:
        _log.error("a call of the daemon cannot be answered: %s", shown(reason(error)))
    except Exception as error:  # noqa: BLE001 - a traceback would read files below another root
        _log.error("a call of the daemon cannot be answered: %s", shown(repr(error)))
    return 1


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
