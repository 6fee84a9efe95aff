# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kill daemons again and again while programs use their mounts: scripts/withstand.

Each daemon runs below ``efuse run --restart --consistency exclusive``. Programs make, change, move
and remove files on its mount, and compare them with what they must be; SQLite, git, tar, make and
fio are among them. The daemon is killed by SIGKILL at random moments. No call may fail, and no name
and no byte may differ. In the end the files are compared with those below the daemon.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import quantiles

from tests.conformance.systems import lower_file_system
from tests.withstand.daemons import DAEMONS
from tests.withstand.loads import LOADS, READING
from tests.withstand.run import Report, withstood


def _daemon(text: str) -> str:
    if text not in DAEMONS:
        raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(DAEMONS)}")
    return text


def _kills(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def main() -> int:
    """Return the exit status: 1 if a call failed, or something differed."""
    parser = argparse.ArgumentParser(
        prog="scripts/withstand",
        description=__doc__,
        epilog="example: scripts/withstand --kills 100 --load git --load tar bindfs",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("daemon", nargs="*", type=_daemon, help="which; all if none is given")
    parser.add_argument(
        "--kills", type=_kills, default=1000, help="for each daemon (default: 1000)"
    )
    parser.add_argument("--seed", type=int, help="seed of the random choices; the run prints it")
    parser.add_argument(
        "--load",
        action="append",
        choices=[*LOADS, *READING],
        help="only this program; may be repeated",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports to FILE")
    given = parser.parse_args()
    seed = time.time_ns() % 1_000_000 if given.seed is None else given.seed
    reports = []
    for name in given.daemon or DAEMONS:
        print(f"withstand: {name}, {given.kills} kills, --seed {seed}", flush=True)
        with lower_file_system() as lower, tempfile.TemporaryDirectory(dir=lower) as where:
            report = withstood(
                DAEMONS[name], Path(where), kills=given.kills, seed=seed, loads=given.load or ()
            )
        reports.append(report)
        _tell(report, given.kills)
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in reports]) + "\n")
    return int(any(each.faults for each in reports))


def _tell(report: Report, kills: int) -> None:
    if report.kills < kills and not report.faults:
        report.faults.append(f"{report.kills} kills, and not {kills}")
    work = ", ".join(f"{name} {steps}" for name, steps in report.steps.items())
    print(f"withstand: {report.daemon}: killed {report.kills} times; steps: {work}")
    print(
        f"withstand: {report.resent} requests were sent again, {report.settled} settled, "
        f"{report.failed} failed unnoticed"
    )
    if len(report.pauses_ms) > 1:
        cut = quantiles(report.pauses_ms, n=100, method="inclusive")
        print(f"withstand: without a daemon for {cut[49]:.0f} ms (median), {cut[98]:.0f} ms (p99)")
    for fault in report.faults:
        print(f"FAILED: {fault}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
