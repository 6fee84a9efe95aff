# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes that are recognized later: by their id, and by the time at which they began."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from efuse.fs.forking import forked

__all__ = ["Process", "spawn"]

_MARK = "EFUSE_SERVICE_START"


@dataclass(frozen=True, slots=True)
class Process:
    """A process. Its id may be used again, but not with the same begin.

    :ivar pid: its id.
    :ivar began: when it began, in ticks of the kernel's clock.
    """

    pid: int
    began: int

    @classmethod
    def of(cls, pid: int, *, proc: Path = Path("/proc")) -> Process | None:
        """Return the process with an id; None if there is none, or if it has ended."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The name of the program is any bytes, in parentheses.
            words = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
            if words[0] not in (b"Z", b"X"):
                return cls(pid, int(words[19]))
        return None

    @property
    def mark(self) -> str:
        """What stands in the environment of a command that `spawn` has executed in this process.

        The processes that it starts inherit it, also those in the background.
        """
        return f"{_MARK}={self.pid}-{self.began}"

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return Process.of(self.pid) == self

    def opened(self) -> int:
        """Return a descriptor of the process, for poll(2); -1 if it has ended."""
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(self.pid)
            if self.is_alive:  # the descriptor is not of a later process
                return fd
            os.close(fd)
        return -1

    def send(self, number: int) -> bool:
        """Send a signal. Return False if the process has ended."""
        fd = self.opened()
        if fd < 0:
            return False
        try:
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True


def spawn(command: list[str], log: Path, note: Callable[[Process], None]) -> Process:
    """Start a command in a session of its own, but only after *note* has recorded it.

    If this process ends before the record is complete, the command is never executed. So a command
    that runs always has a record, and no other process starts it a second time.

    A signal that arrives before it is executed ends it.

    :param command: an absolute path, and arguments.
    :param log: file for its output. It is made, or emptied, after the command was recorded.
    :param note: records the process.
    :raises OSError: no process can be made.
    """
    receive, send = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = forked(lambda: _execute(command, log, receive, mask))
    except BaseException:
        os.close(send)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(receive)
    try:
        begun = Process.of(pid)
        if begun is None:  # it was killed
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        note(begun)
        with contextlib.suppress(BrokenPipeError):  # it was killed
            os.write(send, b".")
    finally:
        os.close(send)
    return begun


def _execute(command: list[str], log: Path, receive: int, mask: Iterable[int]) -> int:
    """Wait for the word of the parent, and execute a command in place of this process."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):  # a handler of the parent
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # Among them are the locks of this process, and the other end of the pipe.
    os.dup2(receive, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    os.setsid()
    if not os.read(3, 1):  # the parent has ended
        return 1
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.chdir("/")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC
    streams = os.open(os.devnull, os.O_RDONLY), os.open(log, flags, 0o600)
    os.dup2(streams[0], 0)
    os.dup2(streams[1], 1)
    os.dup2(streams[1], 2)
    os.closerange(3, streams[1] + 1)
    me = Process.of(os.getpid())
    assert me is not None
    name, _, value = me.mark.partition("=")
    os.execve(command[0], command, {**os.environ, name: value})
    return 1
