# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mount whose requests the test reads and answers itself, one by one."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from efuse.control import Connection, find
from efuse.fs.mountpoint import MountOptions, mount_efuse, unmount
from tests.guest.support import wire
from tests.guest.support.daemons import eventually
from tests.guest.support.wire import Request

DEADLINE_S = 60


def until(happened: Callable[[], bool]) -> None:
    eventually(happened, deadline_s=DEADLINE_S)


def root_attributes(size: int) -> bytes:
    """Return the answer to a GETATTR of the root. *size* distinguishes answers."""
    attributes = wire.attributes(1, size, (0, 0, 0), stat.S_IFDIR | 0o755, 2, 0, 0)
    return wire.attr_out(0, attributes)


class ManualDaemon:
    """A mount whose root's size is asked for by threads on chosen CPUs; see `ask`."""

    def __init__(
        self,
        mountpoint: Path,
        cpus: tuple[int, ...] = (0, 1),
        init_flags: int = 0,
        max_write: int = 131072,
    ) -> None:
        self._cpus = cpus
        self.mountpoint = mountpoint
        self._pool = ThreadPoolExecutor(64)
        self._affinity = os.sched_getaffinity(0)
        self.fd = mount_efuse(str(mountpoint), MountOptions.parse([]))
        os.set_blocking(self.fd, False)
        init = self.read()
        assert init.opcode == "init"
        answer = wire.init_out(init_flags, max_write=max_write)
        os.write(self.fd, wire.reply(init.unique, 0, answer))
        self.connection = Connection(find(mountpoint).connection)
        self._before = {
            (cpu, name): self._count(cpu, name) for cpu in cpus for name in ("sent", "stolen")
        }

    def close(self, *, lazy: bool = False) -> None:
        """End the connection; unanswered requests fail.

        A test that has failed may leave a channel open, which would keep the connection.

        :param lazy: unmount even if the mount is in use.
        """
        self.connection.abort()
        os.close(self.fd)
        self._pool.shutdown()
        unmount(str(self.mountpoint), lazy=lazy)
        os.sched_setaffinity(0, self._affinity)

    def read(self, cpu: int | None = None) -> Request:
        """Read a request, on *cpu* if given."""
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})
        return wire.parse(os.read(self.fd, 1 << 20))

    def answer(self, request: Request, size: int) -> None:
        os.write(self.fd, wire.reply(request.unique, 0, root_attributes(size)))

    def channel(self, cpu: int, name: str) -> int:
        """Return a counter of a channel, without the INIT request."""
        return self._count(cpu, name) - self._before.get((cpu, name), 0)

    def _count(self, cpu: int, name: str) -> int:
        return self.connection.counts(f"channels/{cpu}")[name]

    def numbers(self, cpu: int, requests: list[Request]) -> list[int]:
        """Return the unique numbers that *cpu* gave to *requests*.

        Each CPU counts from a start of its own, and all count in the same steps.
        """
        step = 2 * (len(self.connection.cpus()) + 1)
        found = [r.unique & ~(1 << 63) for r in requests]
        return [n for n in found if n % step == 2 * (cpu + 1) % step]

    def ask(self, cpu: int) -> Future[int]:
        """Ask for the root's size in a thread on *cpu*; return when the request has been sent."""
        before = self._sent()
        size = self._pool.submit(self._size_on, cpu)
        until(lambda: self._sent() > before)
        return size

    def _sent(self) -> int:
        return sum(self.channel(cpu, "sent") for cpu in self._cpus)

    def _size_on(self, cpu: int) -> int:
        os.sched_setaffinity(0, {cpu})
        return os.stat(self.mountpoint).st_size

    def program(self, cpu: int) -> subprocess.Popen[bytes]:
        """Ask for the root's size in a process on *cpu*; return when the request has been sent.

        Unlike a thread, the process does not hinder the end of the tests if it cannot be ended.
        """
        before = self._sent()
        started = subprocess.Popen(
            ["taskset", "-c", str(cpu), "stat", str(self.mountpoint)],
            env={**os.environ, "LC_ALL": "C"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        until(lambda: self._sent() > before)
        return started
