# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a suite needs to run, and what it returns."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

_DETAIL = 2000
"""Length of the detail of an outcome that is kept, characters."""

# The guest's root directory is the machine's: for the programs of suites it is read-only.
_SANDBOX = ("unshare", "--mount", "sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh")


class Outcome(NamedTuple):
    """The result of one test.

    :ivar name: name of the test in its suite.
    :ivar status: `PASSED`, `FAILED` or `SKIPPED`.
    :ivar detail: why it failed or was skipped; empty if it passed.
    """

    name: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Place:
    """Where a suite runs.

    :ivar root: an empty directory of the tested system.
    :ivar lower: the directory on ext4 that ``root`` shows.
    :ivar scratch: an empty directory elsewhere, for logs and configurations.
    """

    root: Path
    lower: Path
    scratch: Path


@dataclass(frozen=True)
class Amount:
    """How much a run does.

    :ivar patterns: parts of the names of pjdfstest's tests; empty: all tests.
    :ivar fsx_operations: number of operations of each case of fsx.
    :ivar stressors: stressors of stress-ng; empty: its whole class ``filesystem``.
    :ivar stressor_s: how long each stressor runs, in seconds.
    :ivar sync_methods: methods of fs_mark.
    :ivar files: number of files for each method of fs_mark.
    :ivar dbench_s: how long each case of dbench runs, in seconds.
    :ivar kills: how often a process that writes to a database is killed, for each kind of journal.
    """

    patterns: tuple[str, ...]
    fsx_operations: int
    stressors: tuple[str, ...]
    stressor_s: int
    sync_methods: tuple[int, ...]
    files: int
    dbench_s: int
    kills: int


SHORT = Amount((), 1000, ("chmod", "dentry", "hdd", "rename"), 1, (1,), 60, 3, 3)
LONG = Amount((), 20_000, (), 1, (0, 1, 2, 3, 4, 5, 6), 100, 6, 15)

Suite = Callable[[Place, Amount], Iterator[Outcome]]


class Done(NamedTuple):
    """How a program ended: its exit status, negative for a signal, and its output."""

    status: int
    output: str


def run(
    words: Sequence[str | Path], *, cwd: Path | None = None, limit_s: float, path: str = ""
) -> Done:
    """Run a program of a suite, with all its children, for at most *limit_s* seconds.

    :param path: directory in which programs are searched first.
    """
    searched = ":".join(filter(None, (path, os.environ["PATH"])))
    process = subprocess.Popen(
        [*_SANDBOX, *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "PATH": searched},
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        end = ""
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        end = f"\nkilled: it did not end within {limit_s:g} s"
    return Done(process.returncode, output.decode(errors="replace") + end)


def judged(name: str, done: Done, *, why: str = "") -> Outcome:
    """Return the outcome of a test that is one program.

    :param why: what is wrong although the exit status is 0; empty: nothing.
    """
    if done.status == 0 and not why:
        return Outcome(name, PASSED)
    head = why or f"exit status {done.status}"
    return Outcome(name, FAILED, f"{head}: {done.output.strip()[-_DETAIL:]}")
