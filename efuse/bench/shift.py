# SPDX-License-Identifier: LGPL-2.1-or-later
"""A load that changes half-way, so that what was right for the first half no longer is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from efuse.bench.clock import Clock
from efuse.bench.io import IoWorkload
from efuse.bench.workload import Outcome

__all__ = ["Shift"]


@dataclass(frozen=True, slots=True)
class Shift:
    """A :class:`~efuse.bench.workload.Workload` of two halves that take the same time.

    Its value is the geometric mean of the values of the halves, so that both have the same weight
    whatever their magnitude.

    :ivar halves: the two workloads, with the same unit.
    """

    name: str
    what: str
    halves: tuple[IoWorkload, IoWorkload]
    unit: str = "MiB/s"
    better: str = "higher"
    has_reference: bool = False
    transports: tuple[str, ...] = ()

    def scaled(self, scale: float) -> int:
        """Return the length of each half in milliseconds."""
        return self.halves[0].scaled(scale)

    def size_mib(self, count: int) -> int:
        """Return the space that the files of both halves need, in MiB."""
        return sum(half.size_mib(count) for half in self.halves)

    def prepare(self, lower: Path, count: int) -> None:
        """Fill the files of both halves."""
        for half in self.halves:
            (lower / half.name).mkdir()
            half.prepare(lower / half.name, count)

    def warm_up(self, mount: Path, lower: Path, count: int) -> bool:
        """Run both halves once, verified."""
        return all(h.warm_up(mount / h.name, lower / h.name, count) for h in self.halves)

    def sync(self) -> None:
        """Write back dirty data."""
        self.halves[0].sync()

    def measure(self, mount: Path, count: int, round: int, clock: Clock) -> Outcome:
        """Run one half after the other."""
        values = [h.measure(mount / h.name, count, round, clock).value for h in self.halves]
        return Outcome(math.prod(values) ** (1 / len(values)))

    def verify(self, mount: Path, lower: Path, reference: Path) -> bool:
        """Return whether the files on the mount equal those on the lower file system."""
        return all(h.verify(mount / h.name, lower / h.name, reference) for h in self.halves)
