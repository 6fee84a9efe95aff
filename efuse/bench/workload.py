# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a workload is, whatever it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from efuse.bench.clock import Clock

__all__ = ["Measure", "Outcome", "Workload"]


@dataclass(frozen=True, slots=True)
class Measure:
    """What was found beside a round's value. Less of it is better, if it is to be compared."""

    value: float
    unit: str
    compared: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one round gave: its value in the workload's unit, and what has to be the same in a copy
    on the lower file system.

    ``measures`` are what else was found, by name; ``requests`` those that the daemon must have got,
    ``switches`` all context switches of those who sent them.
    """

    value: float
    seen: str = ""
    measures: dict[str, Measure] = field(default_factory=dict)
    requests: int = 0
    switches: int = 0


class Workload(Protocol):
    """One workload.

    ``count`` is what :meth:`scaled` makes of the scale. *mount* is where a system shows the
    workload's directory, *lower* the same directory on the lower file system.
    """

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def what(self) -> str:
        """What it does, in a few words."""

    @property
    def unit(self) -> str:
        """Of the value."""

    @property
    def better(self) -> str:
        """Which values are better: ``higher`` or ``lower``."""

    @property
    def has_reference(self) -> bool:
        """Whether all that it sees and leaves is the same in each copy."""

    @property
    def transports(self) -> tuple[str, ...]:
        """The transports that are compared, where it measures only how requests reach a daemon."""

    def scaled(self, scale: float) -> int:
        """Return the size at *scale*."""

    def size_mib(self, count: int) -> int:
        """Return how much room its files need."""

    def prepare(self, lower: Path, count: int) -> None:
        """Make the files."""

    def rehearse(self, mount: Path, lower: Path, count: int) -> bool:
        """Do it once before the rounds, not measured; return whether all data was right."""

    def settle(self) -> None:
        """Bring caches into the state that a round begins with; not measured."""

    def measure(self, mount: Path, count: int, round: int, clock: Clock) -> Outcome:
        """Do one round; *clock* is for what is timed as a whole."""

    def agrees(self, mount: Path, lower: Path, reference: Path) -> bool:
        """Return whether the files, after all rounds, are those that they should be."""
