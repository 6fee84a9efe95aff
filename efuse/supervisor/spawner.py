# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process that forks others for the supervisor, which cannot do so itself.

A fork has all descriptors of its parent. If one of them is a file of a mount whose daemon waits for
an answer, closing it waits for that daemon (FUSE_FLUSH), and so does the end of the process. A
program that runs a daemon, such as `efuse bench`, may have such files open. This process is forked
before the daemon has mounted anything, and has no descriptors but its own.

It lives as long as the mounts, so it holds nothing else either: no standard streams, which a reader
of the output of `efuse run` would wait for, no terminal, and no working directory. What it or a
process of it would log, it reports.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import pickle
import select
import signal
import socket
import threading
from collections.abc import Callable, Sequence

from efuse.errors import EfuseError, reason
from efuse.fs.forking import forked
from efuse.supervisor import reports
from efuse.supervisor.worker import Worker

__all__ = ["Spawner"]

_log = logging.getLogger("efuse.fs")
_LARGEST, _ALL_FDS = 1 << 16, 1 << 30
# A fork takes milliseconds.
_ANSWER_S = 5.0

Job = Callable[[socket.socket], object]
"""What a forked process does, with a socket to the supervisor. Pickled."""


class Spawner:
    """Forks processes.

    If the process that forks them was killed, the next job begins with another one.

    :param kept: descriptors that these processes have under the same numbers.
    :raises OSError: no process can be made.
    :ivar process: id of the process that forks them.
    """

    def __init__(self, *kept: int) -> None:
        self._kept, self._pidfd = kept, -1
        self._lock = threading.Lock()
        self._begin()

    def start(self, job: Job) -> Worker:
        """Start a job in a process of its own.

        :raises OSError: no process can be made.
        """
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with its, self._lock:
                process, pidfd = self._started(pickle.dumps(job), its.fileno())
        except OSError:
            ours.close()
            raise
        return Worker(process, pidfd, ours)

    def close(self) -> None:
        """End the process that forks others; those go on."""
        self._end()

    def _begin(self) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self.process = forked(lambda: _serve(its, self._kept))
            self._pidfd = os.pidfd_open(self.process)

    def _end(self) -> None:
        if self._pidfd < 0:
            return
        # By a signal: a process that this one has forked may have a copy of the socket.
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.poll(_ANSWER_S * 1000)
        with contextlib.suppress(ChildProcessError):  # it was reaped with all others
            os.waitpid(self.process, os.WNOHANG)
        os.close(self._pidfd)
        self._pidfd = -1
        self._socket.close()

    def _started(self, job: bytes, fd: int) -> tuple[int, int]:
        if self._pidfd < 0:  # no other one could be made in its place
            self._begin()
        try:
            socket.send_fds(self._socket, [job], [fd])
        except (BrokenPipeError, ConnectionResetError):
            _log.warning("the process that looks at the calls of the daemon was killed")
            self._end()
            self._begin()
            socket.send_fds(self._socket, [job], [fd])
        return self._answered()

    def _answered(self) -> tuple[int, int]:
        """Return the id and a descriptor of the process that was just asked for."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        told = b""
        fds: list[int] = []
        if poll.poll(_ANSWER_S * 1000):
            with contextlib.suppress(ConnectionResetError):
                told, fds, _, _ = socket.recv_fds(self._socket, 16, 1, socket.MSG_CMSG_CLOEXEC)
        if fds:
            return int(told), fds[0]
        number = errno.EMFILE  # there is no room here for the descriptor
        if told.startswith(b"-"):
            number = -int(told)
        elif not told:  # it was killed, or hangs: the next job begins with another one
            number = errno.EAGAIN
            self._socket.shutdown(socket.SHUT_RDWR)
        raise OSError(number, os.strerror(number))


def _serve(requests: socket.socket, kept: Sequence[int]) -> int:
    """Fork a process for each request, until the supervisor has ended."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Only the supervisor ends them.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _hold_only({requests.fileno(), *kept} - {-1})
    while True:
        data, fds, flags, _ = socket.recv_fds(requests, _LARGEST, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return 0
        _reap()
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or not fds:
            requests.send(b"-%d" % errno.EMSGSIZE)
        else:
            _fork(data, fds[0], requests)
        for fd in fds:
            os.close(fd)


def _hold_only(wanted: set[int]) -> None:
    """Leave the session and the working directory, and close all descriptors but these."""
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in {0, 1, 2} - wanted:
        os.dup2(null, stream)
    numbers = sorted({0, 1, 2, *wanted})
    for before, after in itertools.pairwise([*numbers, _ALL_FDS]):
        os.closerange(before + 1, after)


def _fork(data: bytes, fd: int, requests: socket.socket) -> None:
    """Fork a process for a job, and send its id and a descriptor of it, or ``-ERRNO``."""
    try:
        process = forked(lambda: _do(data, fd, requests))
        descriptor = os.pidfd_open(process)
    except OSError as error:
        requests.send(b"-%d" % (error.errno or errno.EAGAIN))
    else:
        socket.send_fds(requests, [b"%d" % process], [descriptor])
        os.close(descriptor)


def _do(data: bytes, fd: int, requests: socket.socket) -> int:
    requests.close()
    with socket.socket(fileno=fd) as supervisor:
        try:
            pickle.loads(data)(supervisor)
        except Exception as error:  # noqa: BLE001 - the supervisor logs it
            with contextlib.suppress(OSError):
                reports.send(supervisor, reports.Trouble(_text(error)))
            return 1
    return 0


def _text(error: Exception) -> str:
    """Describe an exception without its lines of code: their files are not those of this root."""
    if isinstance(error, OSError):
        return reason(error)
    if isinstance(error, EfuseError):
        return str(error)
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "" if at is None else f" ({at.tb_frame.f_code.co_filename}:{at.tb_lineno})"
    return f"{error!r}{where}"


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
