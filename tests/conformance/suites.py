# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a suite on a system, in a guest, and check what has to be true for every suite."""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from efuse.guest import kernel_log
from tests.conformance import dbench, fs_mark, fsx, pjdfstest, sqlite, stress_ng
from tests.conformance.outcome import FAILED, PASSED, Amount, Outcome, Place, Suite
from tests.conformance.results import Result
from tests.conformance.systems import Mounted, is_answered, mounted
from tests.guest.support.running_kernel import KernelLog

SUITES: dict[str, Suite] = {
    "pjdfstest": pjdfstest.tests,
    "fsx": fsx.tests,
    "stress-ng": stress_ng.tests,
    "fs_mark": fs_mark.tests,
    "dbench": dbench.tests,
    "sqlite": sqlite.tests,
}
"""The suites by name."""

ITSELF = "the run itself"
"""Name of the outcome that is added if a run shows a fault that belongs to no test."""


@contextmanager
def system(name: str, lower: Path) -> Iterator[Mounted]:
    """Mount a system over an empty directory of the ext4 *lower*."""
    with tempfile.TemporaryDirectory(prefix="c-", dir="/tmp") as point:
        Path(point).chmod(0o755)
        directory = next(p for n in itertools.count() if not (p := lower / str(n)).exists())
        directory.mkdir(mode=0o755)
        with mounted(name, directory, Path(point)) as one:
            yield one


def carried_out(suite: str, name: str, one: Mounted, amount: Amount) -> Result:
    """Run *suite* on the mounted system *name*, and print outcomes as they come."""
    log = KernelLog()
    start, before = time.monotonic(), one.answers()
    root = one.root / suite
    # The suites also act as other users.
    root.mkdir(mode=0o755)
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch:
        Path(scratch).chmod(0o755)
        place = Place(root, one.lower / suite, Path(scratch))
        outcomes = []
        for outcome in SUITES[suite](place, amount):
            outcomes.append(outcome)
            if outcome.status != PASSED or suite != "pjdfstest":
                took = f"{time.monotonic() - start:.0f} s"
                print(f"  {took:>6}  {suite}, {outcome.name}: {outcome.status}", flush=True)
    answers = one.answers() - before
    faults = [f"the kernel complained: {text}" for text in kernel_log.complaints(log.new_text())]
    if is_answered(name) and not answers:
        faults.append("the kernel has answered nothing")
    shutil.rmtree(root)
    if os.listdir(one.lower):
        faults.append(f"the suite left files behind: {os.listdir(one.lower)}")
    outcomes += [Outcome(ITSELF, FAILED, fault) for fault in faults]
    took_s = round(time.monotonic() - start)
    return Result(suite, name, tuple(outcomes), answers, took_s, platform.release())
