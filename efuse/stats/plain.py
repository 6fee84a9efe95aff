# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sample plain FUSE mounts: those of the kernel's own FUSE, with or without the eFuse module.

BPF programs count their requests for as long as the samples are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from efuse import opcodes
from efuse.closing import Closing
from efuse.control import all_mounts, fuse_connections, fuse_waiting
from efuse.errors import EfuseError, NotSupportedError
from efuse.stats.model import Counters, Sample

if TYPE_CHECKING:
    from efuse.bpf.requests import Counted, RequestCounters

__all__ = ["PlainMounts", "plain_connections"]


def plain_connections() -> dict[int, str]:
    """Return the mount point of each connection of plain FUSE, by number.

    The mount point is empty if this process does not see the mount. virtiofs does not count: its
    requests go to the host, not to a daemon.
    """
    found = dict.fromkeys(fuse_connections(), "")
    for mount in all_mounts():
        if mount.is_fuse:
            found[mount.connection] = found.get(mount.connection) or mount.mountpoint
        else:
            found.pop(mount.connection, None)
    return dict(sorted(found.items()))


def _count() -> RequestCounters:
    # Imported here: without plain FUSE mounts, libbpf is not needed.
    from efuse.bpf.requests import RequestCounters
    from efuse.bpf.tracing import may_trace

    if not may_trace():
        raise NotSupportedError(
            "plain FUSE mounts are not counted: tracing needs root (EPERM)",
            hint="run as root, or with CAP_BPF and CAP_PERFMON",
        )
    return RequestCounters()


class PlainMounts(Closing):
    """All plain FUSE mounts. A context manager.

    Counting starts when a plain FUSE mount is first read, or with `start`, and ends when this is
    closed.

    :param count: function that starts to count requests.
    """

    def __init__(self, count: Callable[[], RequestCounters] = _count) -> None:
        self._count = count
        self._counters: RequestCounters | None = None
        self._problem: EfuseError | None = None
        self.seen = False
        """Whether there has been a plain FUSE mount since this was created."""

    @property
    def problem(self) -> EfuseError | None:
        """The error that keeps requests from being counted, or None."""
        return self._problem

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is not counted."""
        if self._problem is not None:
            hint = f"; try: {self._problem.hint}" if self._problem.hint else ""
            return (f"{self._problem}{hint}",)
        if not self.missed:
            return ()
        return (f"{self.missed} requests of plain FUSE were missed and are not counted",)

    @property
    def missed(self) -> int:
        """Number of requests not counted: there was no room, or the CPU was busy counting."""
        return self._counters.missed() if self._counters is not None else 0

    def read(self, only: int | None = None) -> tuple[Sample, ...]:
        """Sample all connections, ordered by number. They have no counters if counting fails.

        :param only: number of the one connection to sample.
        """
        counted: Mapping[tuple[int, int], Counted] = {}
        now = 0
        if self._counters is not None:
            counted, now = self._counters.read(), time.monotonic_ns()
        # Listed after the counts were read: counts of any other connection are of one that is gone.
        found = plain_connections()
        if self._counters is not None:
            self._counters.forget(key for key in counted if key[0] not in found)
        elif found:
            self.start()
            now = time.monotonic_ns()
        self.seen |= bool(found)
        wanted = (item for item in found.items() if only in (None, item[0]))
        return tuple(self._sample(number, where, now, counted) for number, where in wanted)

    def start(self) -> None:
        """Start counting now instead of when the first mount is read."""
        if self._counters is None and self._problem is None:
            try:
                self._counters = self._count()
            except EfuseError as error:
                self._problem = error

    def close(self) -> None:
        """Stop counting. Further calls do nothing."""
        if self._counters is not None:
            self._counters.close()
            self._counters = None

    def _sample(
        self,
        connection: int,
        mountpoint: str,
        taken_ns: int,
        counted: Mapping[tuple[int, int], Counted],
    ) -> Sample:
        own = {opcode: c for (number, opcode), c in counted.items() if number == connection}
        init = own.get(opcodes.NUMBERS["init"])
        since = None
        if self._counters is not None:
            since = max(self._counters.since_ns, init.first_ns if init else 0)
        return Sample(
            connection=connection,
            taken_ns=taken_ns,
            mountpoint=mountpoint,
            kind="fuse",
            since_ns=since,
            consistency="none",
            waiting=fuse_waiting(connection),
            opcodes={opcodes.name(n): _counters(c) for n, c in sorted(own.items())},
            latency={opcodes.name(n): c.latency for n, c in sorted(own.items())},
        )


def _counters(c: Counted) -> Counters:
    return Counters(
        requests=c.requests,
        daemon=c.requests,
        errors=c.errors,
        daemon_ns=c.ns,
        daemon_timed=c.requests,
    )
