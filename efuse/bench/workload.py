# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interface of a workload."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from efuse.bench.clock import Clock

__all__ = ["Measure", "Outcome", "Workload"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A further measure of a round.

    :ivar value: the value.
    :ivar unit: unit of the value.
    :ivar compared: whether systems are compared by it; less is better.
    """

    value: float
    unit: str
    compared: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one round.

    :ivar value: the value, in the workload's unit.
    :ivar seen: what the workload saw; must be the same as in a copy on the lower file system.
    :ivar measures: further measures, by name.
    :ivar requests: number of requests that the daemon must have got.
    :ivar switches: all context switches of the threads that sent the requests.
    """

    value: float
    seen: str = ""
    measures: dict[str, Measure] = field(default_factory=dict)
    requests: int = 0
    switches: int = 0


class Workload(Protocol):
    """A workload.

    ``count`` is the return value of :meth:`scaled`. *mount* is the workload's directory on a
    system, and *lower* the same directory on the lower file system.
    """

    @property
    def name(self) -> str:
        """Name of the workload."""

    @property
    def what(self) -> str:
        """Description in a few words."""

    @property
    def unit(self) -> str:
        """Unit of the value."""

    @property
    def better(self) -> str:
        """Which values are better: ``higher`` or ``lower``."""

    @property
    def has_reference(self) -> bool:
        """Whether all that the workload sees and leaves is the same in each copy of its files."""

    @property
    def transports(self) -> tuple[str, ...]:
        """The transports to compare, if it measures only how requests reach a daemon; or none."""

    def scaled(self, scale: float) -> int:
        """Return the size of the workload at *scale*."""

    def size_mib(self, count: int) -> int:
        """Return the space that the workload's files need, in MiB."""

    def prepare(self, lower: Path, count: int) -> None:
        """Make the files."""

    def warm_up(self, mount: Path, lower: Path, count: int) -> bool:
        """Run once before the rounds, not measured; return whether all data was right."""

    def sync(self) -> None:
        """Bring the caches into the state in which a round begins; not measured."""

    def measure(self, mount: Path, count: int, round: int, clock: Clock) -> Outcome:
        """Run one round. *clock* is for workloads that are timed as a whole."""

    def verify(self, mount: Path, lower: Path, reference: Path) -> bool:
        """Return whether the files are right after all rounds."""
