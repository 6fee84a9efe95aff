# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the modules with one fault at a time, and show that the tests notice each.

``make test-mutants``, or ``python -m tests.mutants [NAME...]``. The exit status is 1 if a broken
build passed its tests. With ``--schedules``, random schedules run in place of the tests of each
broken build, and the exit status is 1 if they notice none of them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from efuse import locations
from tests.mutants import batch
from tests.mutants.table import Mutant, mutants

_AT_ONCE = 12
"""Number of builds that share a guest."""


_HANGS_S = 300
"""Time limit of a test in seconds. A broken build may hang it."""


def _command(mutant: Mutant, name: str, schedules: list[str] | None) -> list[str]:
    """Return the command that must fail in the guest.

    :param name: name of a directory in the guest for this build. pytest would fail by a directory
        of an earlier build that it cannot remove.
    """
    if schedules is not None:
        return [sys.executable, "-u", "-m", "tests.schedules", *schedules]
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    options = [f"--basetemp=/tmp/{name}", "-o", f"faulthandler_timeout={_HANGS_S}"]
    return [*words, *options, *(f"tests/guest/{test}" for test in mutant.tests)]


def _prepared(
    directory: Path, chosen: list[Mutant], schedules: list[str] | None
) -> dict[Path, Mutant]:
    roots = {directory / f"{number:02}": mutant for number, mutant in enumerate(chosen)}
    for root, mutant in roots.items():
        root.mkdir(parents=True)
        batch.prepare(mutant, root, _command(mutant, root.name, schedules))
    return roots


def _survivors(chosen: list[Mutant], schedules: list[str] | None) -> int:
    """Try broken builds, and print what came of each. Return how many were not noticed.

    The builds for the next guest are made meanwhile.
    """
    chunks = [chosen[at : at + _AT_ONCE] for at in range(0, len(chosen), _AT_ONCE)]
    survivors = 0
    with (
        tempfile.TemporaryDirectory(dir=locations.cache(), prefix="mutants-") as name,
        ThreadPoolExecutor(1) as pool,
    ):
        prepared: list[Future[dict[Path, Mutant]]] = []
        for number in range(len(chunks) + 1):
            if number < len(chunks):
                directory = Path(name) / str(number)
                prepared.append(pool.submit(_prepared, directory, chunks[number], schedules))
            if number:
                for verdict in batch.verdicts(prepared[number - 1].result()):
                    survivors += not verdict.noticed
                    said = "noticed" if verdict.noticed else "NOT NOTICED"
                    print(f"{verdict.mutant.name}: {said}: {verdict.how}", flush=True)
                shutil.rmtree(Path(name) / str(number - 1))
    return survivors


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
    survivors = _survivors(chosen, schedules)
    print(f"{len(chosen) - survivors} of {len(chosen)} broken builds noticed")
    return int(survivors == len(chosen) if schedules else survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
