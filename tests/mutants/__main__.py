# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the modules with one fault at a time, and show that the tests notice each.

``make test-mutants``, or ``python -m tests.mutants [NAME...]``. Each runs in a guest of its own.
The exit status is 1 if a broken build passed its tests. With ``--schedules``, random schedules run
in place of the tests of each broken build, and the exit status is 1 if they notice none of them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from efuse import locations
from tests.commands import EFUSE

_ROOT = Path(__file__).resolve().parents[2]
_MUTANTS = Path(__file__).with_name("mutants.toml")
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
# A fault may hang a task for good, which ends the guest after two minutes.
_GUEST = ("--timeout", "1200", "--append", "sysctl.kernel.hung_task_panic=1")


@dataclass(frozen=True)
class Mutant:
    """A broken build; see mutants.toml."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Break the sources below *root*.

        :raises ValueError: the text to replace does not occur exactly once.
        """
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has {text.count(self.old)} such places")
        path.write_text(text.replace(self.old, self.new))


def mutants() -> list[Mutant]:
    """Return all broken builds."""
    tables = tomllib.loads(_MUTANTS.read_text())
    return [
        Mutant(name, t["file"], t["old"], t["new"], tuple(t["tests"])) for name, t in tables.items()
    ]


def _copy(target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for name in _COPIED:
        source = _ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        else:
            shutil.copy(source, target / name)


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


def _command(mutant: Mutant, schedules: list[str] | None) -> list[str]:
    """Return the command that must fail in the guest."""
    if schedules is not None:
        return [sys.executable, "-u", "-m", "tests.schedules", *schedules]
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    return [*words, *(f"tests/guest/{test}" for test in mutant.tests)]


def _tried(mutant: Mutant, schedules: list[str] | None) -> tuple[bool, str]:
    """Return whether the fault was noticed, and which tests failed, or which schedule.

    :param schedules: the arguments of random schedules that run in place of the tests.

    :raises ValueError: the fault cannot be compiled.
    """
    with tempfile.TemporaryDirectory(dir=locations.cache(), prefix="mutant-") as name:
        root = Path(name)
        _copy(root)
        mutant.apply(root)
        kept = str(locations.cache() / "mutants")
        built = _run(root, sys.executable, "-m", "tests.mutants.build", kept)
        if built.returncode:
            raise ValueError(f"{mutant.name}: {built.stderr}")
        words = [*EFUSE, "guest", "run", *_GUEST, "--"]
        done = _run(root, *words, *_command(mutant, schedules))
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)|^(seed \d+ \(.*)", done.stdout, re.M)
    failed = ["".join(found) for found in failed]
    # If no test failed, the guest's kernel has complained or died, and the last line reports that.
    output = failed or [line for line in (done.stdout + done.stderr).splitlines() if line][-1:]
    return done.returncode != 0, ", ".join(output)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all if none is given")
    parser.add_argument(
        "--schedules", metavar="OPTIONS", help='run "scripts/schedules OPTIONS" in place of tests'
    )
    parsed = parser.parse_args()
    names, schedules = parsed.names, parsed.schedules and parsed.schedules.split()
    chosen = [m for m in mutants() if not names or m.name in names]
    if unknown := set(names) - {m.name for m in chosen}:
        parser.error(f"no such broken build: {', '.join(sorted(unknown))}")
    survivors = 0
    for mutant in chosen:
        begin = time.monotonic()
        noticed, how = _tried(mutant, schedules)
        survivors += not noticed
        verdict = "noticed" if noticed else "NOT NOTICED"
        print(f"{mutant.name}: {verdict} ({time.monotonic() - begin:.0f} s): {how}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} broken builds noticed")
    return int(survivors == len(chosen) if schedules else survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
