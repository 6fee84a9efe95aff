# SPDX-License-Identifier: LGPL-2.1-or-later
"""The clocks that a workload is timed by as a whole."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["CLOCKS", "Clock"]

Clock = Callable[[], int]
"""Returns nanoseconds since some moment."""

_SCHEDSTAT = Path("/proc/schedstat")
_RAN = 7  # the field of a CPU's line: nanoseconds that tasks ran (Documentation/scheduler)


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _worked_ns() -> int:
    """Return how long all CPUs together have worked so far, for tasks of any kind.

    A guest that counts instructions leaps over the time in which it has nothing to do: from one
    timer to the next, for as long as the host takes to give it a file. That is not counted here.
    """
    # What this task has worked is added when it gives its CPU away; a timer may be too quick.
    before = _switches()
    while _switches() == before:
        time.sleep(1e-6)
    lines = _SCHEDSTAT.read_text().splitlines()
    return sum(int(line.split()[_RAN]) for line in lines if line.startswith("cpu"))


CLOCKS: dict[str, Clock] = {"time": time.perf_counter_ns, "instructions": _worked_ns}
"""By what a guest's clock counts."""
