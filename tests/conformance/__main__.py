# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run what is missing, each system in a guest of its own, and compare: scripts/conformance."""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.commands import EFUSE
from tests.conformance import document
from tests.conformance.compare import details, differences, outdated, reasons, unexplained
from tests.conformance.least import too_few
from tests.conformance.outcome import FAILED, LONG
from tests.conformance.results import Result, directory, load
from tests.conformance.suites import SUITES
from tests.conformance.systems import BASE, SYSTEMS

_LIMIT_S = 7200
"""Time limit of a guest, in seconds."""


def _say(text: str) -> None:
    print(f"conformance: {text}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/conformance",
        description="Run the test suites of other projects on ext4, plain FUSE and eFuse, in "
        "guests, and compare the results with those of ext4. Each result is kept as it comes: a "
        "run that was interrupted goes on where it stopped, until the sources change.",
        epilog="example: scripts/conformance --suite fsx --system 'Passthrough cto'",
    )
    parser.add_argument(
        "--suite", action="append", choices=SUITES, help="only this suite; may be repeated"
    )
    parser.add_argument(
        "--system",
        action="append",
        choices=SYSTEMS,
        help="only this system, and ext4; may be repeated",
    )
    parser.add_argument("--again", action="store_true", help="forget the results that are kept")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write docs/conformance.json and the tables, from all results that are kept",
    )
    return parser.parse_args()


def main() -> int:
    """Return the exit status: 1 if a guest failed, or a difference and its reason do not agree."""
    given = _arguments()
    suites = [name for name in SUITES if given.suite is None or name in given.suite]
    systems = [s for s in SYSTEMS if given.system is None or s in (BASE, *given.system)]
    kept = directory()
    if given.again:
        shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    for number, system in enumerate(systems, 1):
        missing = [suite for suite in suites if load(kept, suite, system) is None]
        _say(f"system {number} of {len(systems)}, {system}: {', '.join(missing) or 'all kept'}")
        words = [sys.executable, "-m", "tests.conformance.inside", str(kept), system, *missing]
        guest = [*EFUSE, "guest", "run", "--again", "1", "--timeout", str(_LIMIT_S), "--", *words]
        if missing and (status := subprocess.run(guest, check=False).returncode):
            _say(f"FAILED: the guest ended with {status}")
            return 1
    took = f"{time.monotonic() - start:.0f} s in total"
    if given.write:
        made = document.report(_kept(kept, SUITES, SYSTEMS))
        document.REPORT.write_text(json.dumps(made, indent=1) + "\n")
        document.write(made)
    results = _kept(kept, suites, systems)
    lost = {*itertools.product(suites, systems)} - {(r.suite, r.system) for r in results}
    for suite, system in lost:
        _say(f"FAILED: there is no result of {suite} on {system}")
    return _judged(results, took) or int(bool(lost))


def _kept(kept: Path, suites: Iterable[str], systems: Iterable[str]) -> list[Result]:
    """Return the results that are kept, of suites that have run on ext4."""
    compared = [suite for suite in suites if load(kept, suite, BASE) is not None]
    results = [load(kept, suite, system) for suite in compared for system in systems]
    return [result for result in results if result is not None]


def _judged(results: list[Result], took: str) -> int:
    """Print the results, and return the exit status."""
    for result in results:
        _say(f"{result.suite} on {result.system}: {result.counts()}; {result.answers} answers")
    few = [text for text in (too_few(result, LONG) for result in results) if text]
    for text in few:
        _say(f"FAILED: {text}")
    there, detail = differences(results), details(results)
    new = unexplained(there, reasons(), detail)
    gone = outdated(there, reasons(), {(result.suite, result.system) for result in results})
    for difference in new:
        _say(f"FAILED: no reason is known for {difference}")
        print(detail.get(difference, ""))
    for difference in gone:
        _say(f"FAILED: differences.toml has a reason, but this is gone: {difference}")
    failed = sum(result.count(FAILED) for result in results)
    _say(f"{len(there)} differences, {len(new)} without a reason; {failed} tests failed; {took}")
    return 1 if few or new or gone else 0


if __name__ == "__main__":
    sys.exit(main())
