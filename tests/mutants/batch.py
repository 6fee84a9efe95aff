# SPDX-License-Identifier: LGPL-2.1-or-later
"""Try broken builds in guests: as many in one guest as it survives.

Each build has a directory with its sources, from which its modules are built. The file `WORK` in
it tells what to run. `tests.mutants.inside` runs the builds' commands in the order of these
directories, and stores in each that it has begun (`STARTED`), what it printed (`OUTPUT`) and its
exit status (`STATUS`). If a guest ends while a build's command runs, the others run in the next
guest. The build is noticed if the guest's kernel had complained; else its command runs once more,
because the emulator may have ended the guest. A command that fails without one of `_FAILURE`, for
example since an earlier build has left something behind, has noticed nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from efuse import locations
from tests.commands import EFUSE
from tests.mutants.table import Mutant

WORK, STARTED, OUTPUT, STATUS = "work.json", "started", "output", "status"
_ROOT = Path(__file__).resolve().parents[2]
_COPIED = (
    "efuse",
    "bpf_programs",
    "csd",
    "kernel_patches",
    "libefuse",
    "tests",
    "pyproject.toml",
    "docs",
)
LONGEST_S = 1200
"""Time limit of the command of one build in seconds."""
# A fault may hang a task for good, which ends the guest after two minutes.
_GUEST = ("--again", "1", "--append", "sysctl.kernel.hung_task_panic=1")
_COMPLAINED = "the guest's kernel complained"
ENDED_TWICE = "the guest ended twice"
OUT_OF_TIME = f"the command did not end within {LONGEST_S} seconds"
KERNEL_COMPLAINED, TAINTED = "the kernel complained", "the kernel is tainted"
_FAILURE = re.compile(
    # Of pytest, of schedules, and of faulthandler, which goes on in the same line.
    r"^(?:FAILED|ERROR) (\S+)|^(seed \d+ \(.*)|(Timeout \(\d:\d\d:\d\d\)!)"
    rf"|^((?:{_COMPLAINED}|{ENDED_TWICE}|{OUT_OF_TIME}|{KERNEL_COMPLAINED}|{TAINTED}).*)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Verdict:
    """What came of a broken build.

    :ivar noticed: whether a test failed or hung, the kernel complained, or its guests ended twice.
    :ivar how: what of this happened, or the last line of the output.
    """

    mutant: Mutant
    noticed: bool
    how: str


def store(path: Path, text: str) -> None:
    """Write a file so that it outlives the guest."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def prepare(mutant: Mutant, root: Path, command: list[str]) -> None:
    """Make the broken sources and their modules.

    :param root: directory to make.
    :param command: what has to fail.
    :raises ValueError: the fault cannot be made, or cannot be compiled.
    """
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for name in _COPIED:
        if (_ROOT / name).is_dir():
            shutil.copytree(_ROOT / name, root / name, ignore=ignore)
        else:
            shutil.copy(_ROOT / name, root / name)
    mutant.apply(root)
    kept = str(locations.cache() / "mutants")
    built = _run(root, sys.executable, "-m", "tests.mutants.build", kept)
    if built.returncode:
        raise ValueError(f"{mutant.name}: {built.stderr}")
    # Python has compiled the unbroken sources before, which takes long in a guest.
    sources = _ROOT if mutant.is_of_modules else root
    work = {"command": command, "sources": str(sources), "modules": json.loads(built.stdout)}
    store(root / WORK, json.dumps(work))


def guest(directory: Path, number: int) -> str:
    """Run the commands of *number* builds in a guest, and return what it reports."""
    inside = [sys.executable, "-m", "tests.mutants.inside", str(directory)]
    timeout = ("--timeout", str(LONGEST_S * number))
    done = _run(_ROOT, *EFUSE, "guest", "run", *_GUEST, *timeout, "--", *inside)
    return f"exit status {done.returncode}\n{done.stdout}{done.stderr}"


def verdicts(
    roots: dict[Path, Mutant], run: Callable[[Path, int], str] = guest
) -> Iterator[Verdict]:
    """Run the commands of the prepared builds.

    :param roots: directories of the builds, which are all those in their parent.
    :param run: function that runs those without a status, and returns what the guest reports.
    :raises RuntimeError: a guest ended before it had begun anything, or a command ran no test.
    """
    left = dict(sorted(roots.items()))
    again: set[Path] = set()
    while left:
        report = run(next(iter(left)).parent, len(left))
        ended = [root for root in left if (root / STATUS).exists()]
        died = [root for root in left if (root / STARTED).exists() and root not in ended]
        if not ended and not died:
            raise RuntimeError(f"the guest has run nothing: {report}")
        for root in died:
            if _COMPLAINED in report or root in again:
                store(root / OUTPUT, _complaint(report) or f"{ENDED_TWICE}: {report}")
                store(root / STATUS, "1")
                ended.append(root)
            again.add(root)
            (root / STARTED).unlink()
        for root in ended:
            yield _verdict(root, left.pop(root))


def _complaint(report: str) -> str:
    """Return the beginning of what a guest's kernel complained about, or nothing."""
    _, complained, what = report.partition(_COMPLAINED)
    return complained + " ".join(what.splitlines()[:2])


def _verdict(root: Path, mutant: Mutant) -> Verdict:
    output = (root / OUTPUT).read_text()
    status = int((root / STATUS).read_text())
    found = ["".join(groups) for groups in _FAILURE.findall(output)]
    lines = [line for line in output.splitlines() if line]
    if status not in (0, 1):
        raise RuntimeError(f"{mutant.name}: exit status {status}: {lines[-1:]}")
    return Verdict(mutant, status == 1 and bool(found), ", ".join(found or lines[-1:]))
