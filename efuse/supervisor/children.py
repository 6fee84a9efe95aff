# SPDX-License-Identifier: LGPL-2.1-or-later
"""The processes below this one: adopt, find, reap and end them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["GRACE_S", "adopting", "descendants", "end", "filters_of", "reap"]

GRACE_S = 10.0
"""How long a process may take to end by SIGTERM before SIGKILL follows, in seconds."""

_PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def adopting() -> Iterator[socket.socket]:
    """Let processes in the background become children of this process within the block.

    It requires the main thread, and uses SIGCHLD.

    :returns: a socket that becomes readable when a child has ended, or a signal was handled.
    """
    libc = ctypes.CDLL(None)
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)
        # Python writes to the descriptor for a signal that has a handler.
        handler = signal.signal(signal.SIGCHLD, lambda *_: None)
        wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
        try:
            yield receiver
        finally:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(0))
            signal.set_wakeup_fd(wakeup)
            if handler is not None:  # None: the handler was not set by Python
                signal.signal(signal.SIGCHLD, handler)


def reap(ended: socket.socket, left: subprocess.Popen[bytes]) -> dict[int, int]:
    """Return the exit statuses of the children that have ended, except of the process *left*.

    :param ended: what `adopting` has returned.
    :returns: each status by the id of the process, as in `subprocess.Popen.returncode`.
    """
    found = {}
    with contextlib.suppress(BlockingIOError):
        while ended.recv(4096):
            pass
    for pid in _children(os.getpid()) - ({left.pid} if left.returncode is None else set()):
        with contextlib.suppress(ChildProcessError):
            child, status = os.waitpid(pid, os.WNOHANG)
            if child:
                found[pid] = os.waitstatus_to_exitcode(status)
    return found


def descendants(pid: int) -> set[int]:
    """Return the processes below a process."""
    found: set[int] = set()
    more = {pid}
    while more:
        more = {child for each in more for child in _children(each)} - found
        found |= more
    return found


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found |= set(map(int, (task / "children").read_text().split()))
    return found


def filters_of(pid: int) -> int:
    """Return how many seccomp filters a process has; 0 if it is gone."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_bytes()
        if told := re.search(rb"^Seccomp_filters:\s*([0-9]+)$", status, re.MULTILINE):
            return int(told[1])
    return 0


def end(processes: set[int]) -> None:
    """End processes by SIGTERM, and those that are left after `GRACE_S` by SIGKILL."""
    watched = []
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            watched.append(os.pidfd_open(pid))
    until = time.monotonic() + GRACE_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        for fd in watched:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
        for fd in watched:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(max(0.0, until - time.monotonic()) * 1000)
    for fd in watched:
        os.close(fd)
