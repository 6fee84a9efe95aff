# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a daemon has done, and what the kernel did in its place."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from efuse.control import Connection
from efuse.control.attributes import read_file
from efuse.stats import Sample, read

__all__ = ["Usage", "channel_counts", "kernel_counts", "switches"]

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
class Usage:
    """What a daemon has done so far: requests, and voluntary context switches. ``preempted`` is how
    often a CPU was taken from one of its threads.

    ``requests`` are by handler where the daemon counts them, else all under one name.
    ``sample`` holds the kernel's counters, without times, and ``paths`` the READs and WRITEs by the
    path that answered them; None and nothing where there is no eFuse. ``channels`` are what the
    kernel counted on each CPU, where it was asked for. ``rings`` are what came over each of the
    daemon's rings of io_uring, ``waiting`` the requests that are not answered yet, likewise.
    """

    requests: dict[str, int] = field(default_factory=dict)
    switches: int = 0
    sample: Sample | None = None
    paths: dict[str, int] = field(default_factory=dict)
    preempted: int = 0
    channels: tuple[dict[str, int], ...] = ()
    rings: tuple[int, ...] = ()
    waiting: int = 0

    def channel_total(self, name: str) -> int:
        """Return the sum of the counters *name* of all CPUs."""
        return sum(counters[name] for counters in self.channels)

    @property
    def total(self) -> int:
        """All requests that wait for an answer: FORGET is none."""
        return sum(n for name, n in self.requests.items() if name != "forget")


def kernel_counts(connection: int | None) -> tuple[Sample | None, dict[str, int]]:
    """Return the kernel's counters of *connection*; None is one of plain FUSE."""
    if connection is None:
        return None, {}
    directory = Connection(connection)
    files = sorted((directory.path / "paths").glob("*/requests"))
    paths = {file.parent.name: int(read_file(file)) for file in files}
    return read(directory, timing=False), paths


def channel_counts(connection: int | None) -> tuple[dict[str, int], ...]:
    """Return the counters of ``channels/`` of *connection*, CPU by CPU; None is plain FUSE."""
    if connection is None:
        return ()
    root = Connection(connection).path / "channels"
    cpus = sorted(int(path.name) for path in root.iterdir() if path.name.isdigit())
    return tuple(_counters(root / str(cpu)) for cpu in cpus)


def _counters(directory: Path) -> dict[str, int]:
    """Return those that the module has."""
    files = [directory / name for name in _CHANNEL_COUNTERS if (directory / name).exists()]
    return {file.name: int(read_file(file)) for file in files}


def switches(pids: Iterable[int], kind: str = "voluntary") -> int:
    """Return the context switches of all threads of *pids*, ``voluntary`` or ``nonvoluntary``."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/status"))
    text = "".join(task.read_text() for task in tasks)
    return sum(int(n) for n in re.findall(rf"^{kind}_ctxt_switches:\s+(\d+)", text, re.M))
