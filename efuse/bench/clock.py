# SPDX-License-Identifier: LGPL-2.1-or-later
"""The clocks that time a workload as a whole."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["CLOCKS", "Clock"]

Clock = Callable[[], int]
"""Returns nanoseconds since a fixed moment."""

_SCHEDSTAT = Path("/proc/schedstat")
_RAN = 7  # the field of a CPU's line with the ns that tasks have run (sched-stats.rst)


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _worked_ns() -> int:
    """Return the time, in ns, that all CPUs together have run tasks so far.

    A guest whose clock counts instructions skips the time in which it is idle: it jumps from one
    timer to the next, for example while the host reads a file. This clock leaves that time out.
    """
    # The kernel adds the time of the running task when the task gives up the CPU. One sleep may be
    # too short for that.
    before = _switches()
    while _switches() == before:
        time.sleep(1e-6)
    lines = _SCHEDSTAT.read_text().splitlines()
    return sum(int(line.split()[_RAN]) for line in lines if line.startswith("cpu"))


CLOCKS: dict[str, Clock] = {"time": time.perf_counter_ns, "instructions": _worked_ns}
"""The clock for each kind of guest clock; see ``--clock``."""
