# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the programs here that write a report like ``efuse bench --json`` have in common."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from efuse.bench import Report, Result
from efuse.bench.counter import SentRequests
from efuse.bench.machine import machine, versions
from efuse.bench.report import ratios
from efuse.bench.usage import kernel_counts
from efuse.control import find
from tests.commands import EFUSE

__all__ = ["ONE_CPU_COUNTED", "Asked", "in_guest", "result", "write_report"]

ONE_CPU_COUNTED = ("--cpus", "1", "--icount")
"""The guest whose clock counts instructions."""


class Asked:
    """How many requests the daemon of a mount has got so far."""

    def __init__(self, mountpoint: Path) -> None:
        self._mount = find(str(mountpoint), fuse=True)
        self._counter = None if self._mount.is_efuse else SentRequests(self._mount.connection)

    def __call__(self) -> int:
        if self._counter is not None:
            return self._counter.count()
        sample, _paths = kernel_counts(self._mount.connection)
        assert sample is not None
        return sample.total.daemon

    def close(self) -> None:
        """Count no more."""
        if self._counter is not None:
            self._counter.close()


def result(
    names: tuple[str, str, str], unit: str, better: str, rounds: Sequence[tuple[float, int]]
) -> Result:
    """Put together what the rounds of a workload found, each answer of which was looked at.

    :param names: of the workload, the system and the daemon.
    :param rounds: of each the value, and how many requests the daemon got.
    """
    values = tuple(value for value, _ in rounds)
    return Result(
        *names,
        value=statistics.median(values),
        unit=unit,
        better=better,
        rounds=values,
        daemon_requests=round(statistics.median(requests for _, requests in rounds)),
        context_switches=0,
        verified=True,
    )


def write_report(path: Path, settings: dict[str, Any], results: Sequence[Result]) -> None:
    """Write what was found, as ``efuse bench --json`` does."""
    report = Report(
        machine(), platform.release(), versions(), settings, tuple(results), ratios(results)
    )
    path.write_text(json.dumps(report.json(), indent=2) + "\n")


def in_guest(module: str, options: Sequence[str], *arguments: str) -> None:
    """Run a Python module in a guest that is booted for it."""
    words = [*EFUSE, "guest", "run", *options, "--", sys.executable, "-m", module, *arguments]
    subprocess.run(words, check=True)
