# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shared parts of the programs in this directory that write reports like ``efuse bench --json``."""

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
from efuse.bench.environment import machine, versions
from efuse.bench.report import ratios
from efuse.bench.usage import kernel_counts
from efuse.control import find
from tests.commands import EFUSE

__all__ = ["ONE_CPU_COUNTED", "Asked", "in_guest", "result", "write_report"]

ONE_CPU_COUNTED = ("--cpus", "1", "--icount")
"""Options of a guest whose clock counts instructions."""


class Asked:
    """Counts the requests that the daemon of a mount has got so far."""

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
        """Stop counting."""
        if self._counter is not None:
            self._counter.close()


def result(
    names: tuple[str, str, str], unit: str, better: str, rounds: Sequence[tuple[float, int]]
) -> Result:
    """Combine the rounds of a workload, all of whose answers have been checked.

    :param names: names of the workload, the system and the daemon.
    :param rounds: for each round the value, and how many requests the daemon got.
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
    """Write a report in the format of ``efuse bench --json``."""
    report = Report(
        machine(), platform.release(), versions(), settings, tuple(results), ratios(results)
    )
    path.write_text(json.dumps(report.json(), indent=2) + "\n")


def in_guest(module: str, options: Sequence[str], *arguments: str) -> None:
    """Run a Python module in a guest that is booted for it."""
    words = [*EFUSE, "guest", "run", *options, "--", sys.executable, "-m", module, *arguments]
    subprocess.run(words, check=True)
