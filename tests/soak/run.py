# SPDX-License-Identifier: LGPL-2.1-or-later
"""Load eFuse for some time, and sample what it occupies."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.soak.growth import BOUNDS, grown, growth
from tests.soak.load import loaded
from tests.soak.quantities import sample, settle


@dataclass
class Soak:
    """A run.

    :ivar seconds: length of the run by the guest's clock.
    :ivar done: how often each kind of work was done.
    :ivar compared_bytes: number of bytes of files that were compared.
    :ivar hits: number of requests that the kernel answered on the mounts that last.
    :ivar at_s: time of each sample since the start, in seconds.
    :ivar series: samples of each quantity.
    """

    seconds: float = 0.0
    done: dict[str, int] = field(default_factory=dict)
    compared_bytes: int = 0
    hits: int = 0
    at_s: list[float] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)

    @property
    def grown(self) -> list[str]:
        """A sentence for each quantity that grew by more than its bound."""
        return grown(self.series)

    def missing(self, rounds: int) -> list[str]:
        """Return what a run of so many rounds has not done.

        Nothing grows in a run that does nothing.
        """
        expected = {
            "rounds": rounds,
            "replacements": 2 * rounds,
            "mounts": rounds,
            "killed daemons": rounds // 4,
            "channels": 3 * rounds,
        }
        found = {"answers of the kernel": self.hits, "compared bytes": self.compared_bytes}
        return [
            *(
                f"{what}: {self.done.get(what, 0)} of {n}"
                for what, n in expected.items()
                if self.done.get(what, 0) < n
            ),
            *(what for what, number in found.items() if not number),
        ]

    def report(self) -> dict[str, Any]:
        """Return the run as a value for JSON."""
        return {
            "machine": {"cpus": os.cpu_count(), "architecture": platform.machine()},
            "kernel": platform.release(),
            **asdict(self),
            "growth": {name: growth(samples) for name, samples in self.series.items()},
            "bounds": dict(BOUNDS),
        }


def soaked(
    seconds: float, rounds: int, *, also: Callable[[], object] = lambda: None, say: bool = False
) -> Soak:
    """Do *rounds* rounds of load within *seconds*, and sample after each.

    :param also: what else to do in each round.
    :param say: print a line for each round.
    """
    soak = Soak()
    with loaded() as load:
        begin = time.monotonic()
        for number in range(rounds):
            load.round()
            also()
            if soak.series:
                settle({name: samples[-1] for name, samples in soak.series.items()})
            found = sample(load.watched)
            soak.at_s.append(round(time.monotonic() - begin, 1))
            for name, value in found.items():
                soak.series.setdefault(name, []).append(value)
            if say:
                print(f"soak: round {number + 1} of {rounds}, {soak.at_s[-1]:.0f} s", flush=True)
            # With a clock that counts instructions, a sleep takes no time.
            time.sleep(max(0.0, begin + (number + 1) * seconds / rounds - time.monotonic()))
        soak.seconds = round(time.monotonic() - begin, 1)
        soak.done = dict(load.done)
        soak.compared_bytes = load.compared
        soak.hits = load.hits()
    return soak
