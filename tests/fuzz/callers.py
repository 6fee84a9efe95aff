# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes that call the mount until they are told to end."""

from __future__ import annotations

import gc
import mmap
import os
import resource
import select
import signal
import struct
import time
import traceback
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.fuzz.calls import ForeignBytesError, Open, Settled

LONGEST_S = 1.0
"""Time after which a call is interrupted."""
_END_S = 60.0
_COUNTS = struct.Struct("=QQQ")
_STOP = 0


def _interrupt(*_: object) -> None:
    raise InterruptedError


class Callers:
    """Forked processes that call a mount. A page fault of a thread could block its own daemon.

    :ivar calls: number of their rounds of calls, after the end.
    :ivar checked: number of the bytes that they compared, after the end.
    :ivar through: number of their reads that FUSE's passthrough carried out, after the end.
    :ivar faults: what they got that they must never get, after the end.
    """

    def __init__(self, root: Path, count: int, seed: int) -> None:
        self.calls = self.checked = self.through = 0
        self.faults: list[str] = []
        self._shared = mmap.mmap(-1, 8 + count * _COUNTS.size)
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        self._pids = [self._fork(root, number, seed, write) for number in range(count)]
        os.close(write)

    def _fork(self, root: Path, number: int, seed: int, report: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            gc.disable()  # a collection would copy all pages that hold objects
            self._call(str(root), number, Random(f"{seed} caller {number}"))
            status = 0
        except ForeignBytesError as error:
            os.write(report, f"{error}\n".encode())
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)

    def _call(self, root: str, number: int, chance: Random) -> None:
        signal.signal(signal.SIGALRM, _interrupt)
        # An interrupted call may leave a descriptor open.
        resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        settled, open_ = Settled(chance, root), Open(chance, root)
        calls = 0
        while not self._shared[_STOP]:
            # The daemon may make any call fail, and a size may suit no mapping.
            with suppress(OSError, ValueError, BufferError):
                try:
                    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
                    (settled if chance.random() < 0.65 else open_).some()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            calls += 1
            at = 8 + number * _COUNTS.size
            counts = _COUNTS.pack(calls, settled.checked, settled.through)
            self._shared[at : at + _COUNTS.size] = counts

    def alive(self) -> bool:
        """Return whether no process has ended."""
        return not any(map(_has_ended, self._pids))

    def tell_to_end(self) -> None:
        """Tell the processes to end after their present call."""
        self._shared[_STOP] = 1

    def wait(self, longest_s: float) -> bool:
        """Wait some time for the processes to end; return whether they have all ended."""
        end = time.monotonic() + longest_s
        return all(_ends(pid, end - time.monotonic()) for pid in self._pids)

    def end(self) -> None:
        """Wait for the processes, and collect what they found.

        :raises AssertionError: one of them did not end.
        """
        self.tell_to_end()
        if not self.wait(_END_S):
            hanging = [_where(pid) for pid in self._pids if not _has_ended(pid)]
            raise AssertionError(f"callers hang: {hanging}")
        for pid in self._pids:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if status:
                self.faults.append(f"a caller ended with {status}")
        for number in range(len(self._pids)):
            counts = _COUNTS.unpack_from(self._shared, 8 + number * _COUNTS.size)
            self.calls += counts[0]
            self.checked += counts[1]
            self.through += counts[2]
        reported = b""
        while chunk := os.read(self._read, 1 << 16):
            reported += chunk
        os.close(self._read)
        self.faults += reported.decode().splitlines()


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ends(pid: int, longest_s: float) -> bool:
    """Wait some time for a process to end; return whether it has ended."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, longest_s) * 1000))
    finally:
        os.close(pidfd)


def _where(pid: int) -> str:
    process = Path(f"/proc/{pid}")
    state = (process / "stat").read_text().rsplit(")", 1)[1].split()[0]
    return f"state {state}, {(process / 'stack').read_text()}"
