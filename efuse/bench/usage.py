# SPDX-License-Identifier: LGPL-2.1-or-later
"""Usage of a daemon: its work so far, and what the kernel did instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from efuse.control import PATHS, Connection
from efuse.stats import Sample, read

__all__ = ["Moves", "Usage", "channel_counts", "kernel_counts", "switches"]

_CHANNEL_COUNTERS = (
    "sent",
    "stolen",
    "poll_hits",
    "poll_misses",
    "spin_hits",
    "spin_misses",
    "elsewhere",
    "others_woken",
    "brought",
)


@dataclass(frozen=True, slots=True)
class Moves:
    """What the daemon ``passthrough_uring`` counts; ``struct counts`` in its source.

    :ivar requests: number of requests that came over its rings.
    :ivar data: number of READs and WRITEs.
    :ivar zero_copied: number of READs and WRITEs whose data was not copied to or from a buffer of
        the daemon.
    :ivar moved_bytes: bytes that io_uring moved to and from lower files.
    """

    requests: int
    data: int
    zero_copied: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What a daemon has done so far.

    :ivar requests: number of requests by handler if the daemon counts them, else under one name.
    :ivar switches: voluntary context switches of the daemon's threads.
    :ivar sample: the kernel's counters, without times; None without eFuse.
    :ivar paths: number of READs and WRITEs by the path that answered them; empty without eFuse.
    :ivar preempted: involuntary context switches of the daemon's threads, if asked for.
    :ivar channels: the kernel's counters for each CPU, if asked for.
    :ivar rings: number of completions on each io_uring ring of the daemon, if asked for.
    :ivar waiting: number of requests that are not yet answered, if asked for.
    :ivar moves: what the daemon counts itself; None if it is not ``passthrough_uring``.
    """

    requests: dict[str, int] = field(default_factory=dict)
    switches: int = 0
    sample: Sample | None = None
    paths: dict[str, int] = field(default_factory=dict)
    preempted: int = 0
    channels: tuple[dict[str, int], ...] = ()
    rings: tuple[int, ...] = ()
    waiting: int = 0
    moves: Moves | None = None

    def channel_total(self, name: str) -> int:
        """Return the sum of the counters *name* over all CPUs."""
        return sum(counters[name] for counters in self.channels)

    @property
    def total(self) -> int:
        """Number of requests that expect an answer: all except FORGETs."""
        return sum(n for name, n in self.requests.items() if name != "forget")


def kernel_counts(connection: int | None) -> tuple[Sample | None, dict[str, int]]:
    """Return the kernel's counters of *connection*; None stands for plain FUSE."""
    if connection is None:
        return None, {}
    directory = Connection(connection)
    paths = {path: directory.counts(f"paths/{path}")["requests"] for path in sorted(PATHS)}
    return read(directory, timing=False), paths


def channel_counts(connection: int | None) -> tuple[dict[str, int], ...]:
    """Return the counters in ``channels/`` of *connection* for each CPU; None means plain FUSE."""
    if connection is None:
        return ()
    directory = Connection(connection)
    each = (directory.counts(f"channels/{cpu}") for cpu in directory.cpus())
    return tuple({name: counts[name] for name in _CHANNEL_COUNTERS} for counts in each)


def switches(pids: Iterable[int], kind: str = "voluntary") -> int:
    """Return the context switches of all threads of *pids*, ``voluntary`` or ``nonvoluntary``."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/status"))
    text = b"".join(task.read_bytes() for task in tasks)
    line = rf"^{kind}_ctxt_switches:\s+(\d+)".encode()
    return sum(int(n) for n in re.findall(line, text, re.MULTILINE))
