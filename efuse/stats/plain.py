# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples of plain FUSE mounts: those of the kernel's own FUSE, with or without the eFuse module.

Their requests are counted by BPF programs of ours for as long as somebody looks.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from efuse import opcodes
from efuse.closing import Closing
from efuse.control import all_mounts, fuse_connections, fuse_waiting
from efuse.errors import EfuseError, NotSupportedError
from efuse.stats.model import Counters, Sample

if TYPE_CHECKING:
    from efuse.bpf.requests import Counted, RequestCounters

__all__ = ["PlainMounts", "plain_connections"]


_STATUS = Path("/proc/self/status")
_TRACING = 1 << 38 | 1 << 39
"""CAP_PERFMON and CAP_BPF."""


def plain_connections() -> dict[int, str]:
    """Return all connections of plain FUSE, with where each is mounted.

    Where that is not known, since it is not mounted where this task can see it, it is empty. A
    virtiofs, which asks no daemon but the host, is none.
    """
    found = dict.fromkeys(fuse_connections(), "")
    for mount in all_mounts():
        if mount.is_fuse:
            found[mount.connection] = found.get(mount.connection) or mount.mountpoint
        else:
            found.pop(mount.connection, None)
    return dict(sorted(found.items()))


def _count() -> RequestCounters:
    # Here and not above: whoever has no plain FUSE mounts does not need libbpf.
    from efuse.bpf.requests import RequestCounters

    if not _may_trace():
        raise NotSupportedError(
            "plain FUSE mounts are not counted: only root may trace (EPERM)",
            hint="run as root, or with CAP_BPF and CAP_PERFMON",
        )
    return RequestCounters()


def _may_trace() -> bool:
    if os.geteuid() == 0:
        return True
    found = re.search(r"^CapEff:\s*(\w+)$", _STATUS.read_text(), re.MULTILINE)
    return found is not None and int(found[1], 16) & _TRACING == _TRACING


class PlainMounts(Closing):
    """All plain FUSE mounts. A context manager.

    Nothing is counted before there is a plain FUSE mount that somebody reads, or `start`, nor once
    this is closed.

    :param count: starts to count requests.
    """

    def __init__(self, count: Callable[[], RequestCounters] = _count) -> None:
        self._count = count
        self._counters: RequestCounters | None = None
        self._problem: EfuseError | None = None
        self.seen = False
        """Whether there has ever been a plain FUSE mount."""

    @property
    def problem(self) -> EfuseError | None:
        """Why requests cannot be counted."""
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
        """How many requests were not counted, since there was no room or a CPU was busy."""
        return self._counters.missed() if self._counters is not None else 0

    def read(self, only: int | None = None) -> tuple[Sample, ...]:
        """Read all connections, by number; where requests cannot be counted, they have none.

        :param only: the number of the one that is wanted.
        """
        counted: Mapping[tuple[int, int], Counted] = {}
        now = 0
        if self._counters is not None:
            counted, now = self._counters.read(), time.monotonic_ns()
        # After the counts: what is counted of none of these is of one that has gone.
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
        """Begin to count now, and not when the first mount is read."""
        if self._counters is None and self._problem is None:
            try:
                self._counters = self._count()
            except EfuseError as error:
                self._problem = error

    def close(self) -> None:
        """Count no more. May be called again."""
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
