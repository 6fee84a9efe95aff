# SPDX-License-Identifier: LGPL-2.1-or-later
"""The workloads that measure how requests reach a daemon. Their callers do nothing else.

The daemon answers every request: the systems are those of :mod:`efuse.bench.transport`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from efuse.bench.clock import Clock
from efuse.bench.load import FILE_BYTES, load, prepare
from efuse.bench.transport import BALANCED, TRANSPORTS
from efuse.bench.workload import Measure, Outcome

__all__ = ["REQUESTS", "SCALE", "expanded"]

SCALE = "scale"
"""Stands for all ``scale-...`` workloads with up to twice as many threads as CPUs."""

_THREADS = (1, 2, 4, 8, 16, 32, 64, 128)
_FILE = "file"


def _spread(threads: int) -> list[int]:
    """Place the threads on the CPUs in turn."""
    cpus = sorted(os.sched_getaffinity(0))
    return [cpus[i % len(cpus)] for i in range(threads)]


def _on_one(threads: int) -> list[int]:
    return [min(os.sched_getaffinity(0))] * threads


@dataclass(frozen=True, slots=True)
class RequestWorkload:
    """A :class:`~efuse.bench.workload.Workload` of callers.

    :ivar kind: ``stat`` or ``read``.
    :ivar block: bytes of a read.
    :ivar threads: number of callers, each a thread.
    :ivar placed: returns the CPU to which each thread is pinned.
    """

    name: str
    what: str
    kind: str
    block: int
    threads: int
    placed: Callable[[int], list[int]]
    transports: tuple[str, ...]
    unit: str = "req/s"
    better: str = "higher"
    has_reference: bool = False

    def scaled(self, scale: float) -> int:
        """Return the length of a round in milliseconds: 10 s at a scale of 1."""
        return max(100, round(10_000 * scale))

    def size_mib(self, count: int) -> int:
        """Return the space that the file needs, in MiB."""
        return 1 + (FILE_BYTES >> 20)

    def prepare(self, lower: Path, count: int) -> None:
        """Write the file."""
        prepare(lower / _FILE)

    def warm_up(self, mount: Path, lower: Path, count: int) -> bool:
        """Compare the whole file; in the rounds the callers check each answer."""
        return self.verify(mount, lower, lower)

    def sync(self) -> None:
        """Write back dirty data."""
        os.sync()

    def measure(self, mount: Path, count: int, round: int, clock: Clock) -> Outcome:
        """Run one round; the callers time it themselves."""
        found = load(mount / _FILE, self.kind, self.block, count, self.placed(self.threads))
        slept, preempted = (n / found.requests for n in (found.switches, found.preempted))
        times = {
            "latency_p50": found.latency_p50_ns,
            "latency_p99": found.latency_p99_ns,
            "queueing_p50": found.queueing_p50_ns,
            "queueing_p99": found.queueing_p99_ns,
        }
        return Outcome(
            found.per_second,
            measures={
                **{name: Measure(ns / 1000, "us") for name, ns in times.items() if ns is not None},
                "caller_switches": Measure(slept, "/req", compared=False),
                "caller_preempted": Measure(preempted, "/req", compared=False),
            },
            requests=found.requests,
            switches=found.switches + found.preempted,
        )

    def verify(self, mount: Path, lower: Path, reference: Path) -> bool:
        """Return whether the file on the mount equals the one on the lower file system."""
        return (mount / _FILE).read_bytes() == (lower / _FILE).read_bytes()


def _scale(kind: str, what: str, threads: int) -> RequestWorkload:
    each = "1 thread" if threads == 1 else f"{threads} threads, each on the next CPU"
    return RequestWorkload(
        f"scale-{kind}-{threads}", f"{what}, {each}", kind, 4096, threads, _spread, TRANSPORTS
    )


# A READ of 128 KiB is cheap for the caller. The daemon copies the data out of the page cache, and
# then into the caller's pages: this work can be done on another CPU.
_SKEW = RequestWorkload(
    "skew",
    "reads of 128 KiB, 4 threads, all on the first CPU",
    "read",
    128 << 10,
    4,
    _on_one,
    BALANCED,
)

REQUESTS = {
    workload.name: workload
    for workload in (
        *(_scale("stat", "fstat of one file", threads) for threads in _THREADS),
        *(_scale("read", "reads of 4 KiB", threads) for threads in _THREADS),
        _SKEW,
    )
}
"""All workloads of requests, by name."""


def expanded(names: Iterable[str], cpus: int | None = None) -> tuple[str, ...]:
    """Return *names* with :data:`SCALE` replaced by the workloads for which it stands.

    :param cpus: number of CPUs of the machine on which they run; None: of this machine.
    """
    most = 2 * (cpus or len(os.sched_getaffinity(0)))
    scale = [n for n, w in REQUESTS.items() if n != _SKEW.name and w.threads <= most]
    found: list[str] = []
    for name in names:
        found += scale if name == SCALE else [name]
    return tuple(dict.fromkeys(found))
