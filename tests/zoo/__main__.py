# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m tests.zoo``: run the zoo, and print the requests at each daemon."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import traceback
from pathlib import Path

from tests.zoo.daemons import DAEMONS
from tests.zoo.run import both, differences
from tests.zoo.table import described, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="DAEMON", help="which; all if none is given")
    parser.add_argument("--json", metavar="FILE", help="write what was counted to FILE")
    parsed = parser.parse_args()
    failed: list[str] = []
    found = []
    for daemon in DAEMONS:
        if parsed.names and daemon.program not in parsed.names:
            continue
        if not daemon.is_installed:
            print(f"{daemon.program}: not installed: scripts/setup-zoo all", flush=True)
            failed.append(daemon.program)
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="zoo-", dir="/var/tmp") as where:
                plain, ours = both(daemon, Path(where))
        except Exception as error:  # noqa: BLE001 - the daemons after it are run, too
            traceback.print_exc()
            print(f"{daemon.program}: FAILED: {error!r}", flush=True)
            failed.append(daemon.program)
            continue
        found.append(described(daemon, plain, ours))
        print(table(found[-1:]).splitlines()[-1], flush=True)
        if not found[-1]["same"]:
            print(*differences(plain, ours), sep="\n", flush=True)
            failed.append(daemon.program)
    print(table(found))
    if failed:
        print("FAILED:", *failed)
    if parsed.json:
        report = {"kernel": platform.release(), "daemons": found}
        Path(parsed.json).write_text(json.dumps(report, indent=1) + "\n")
    return failed != []


if __name__ == "__main__":
    sys.exit(main())
