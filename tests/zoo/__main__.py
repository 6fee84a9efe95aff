# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m tests.zoo [DAEMON...]``: run the zoo, and print the requests at each daemon."""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path

from efuse.profiles import matching
from tests.zoo.daemons import DAEMONS, Daemon
from tests.zoo.run import Outcome, both

_STEPS = ("first", "again", "afresh")
_HEAD = """
| daemon | profile | content | first | again | READs again | caches dropped | all |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


def _row(daemon: Daemon, plain: Outcome, ours: Outcome) -> str:
    """Return a line of the table: requests at the daemon on plain FUSE / on eFuse."""
    known = matching(daemon.command(Path("/"), Path("/")))
    counts = {step: f"{plain.requests[step]} / {ours.requests[step]}" for step in _STEPS}
    name = (f"`{daemon.program}`", daemon.through, "read-only" * daemon.read_only)
    cells = [
        ", ".join(filter(None, name)),
        known.consistency if known else "none",
        "same" if plain.seen == ours.seen else "DIFFERENT",
        counts["first"],
        counts["again"],
        f"{ours.reads['again']}",
        counts["afresh"],
        f"{sum(plain.requests.values())} / {sum(ours.requests.values())}",
    ]
    return f"| {' | '.join(cells)} |"


def main(names: list[str]) -> int:
    failed, rows = 0, [_HEAD]
    for daemon in DAEMONS:
        if names and daemon.program not in names:
            continue
        if not daemon.is_installed:
            print(f"{daemon.program}: not installed: scripts/setup-zoo all", flush=True)
            failed += 1
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="zoo-", dir="/var/tmp") as where:
                plain, ours = both(daemon, Path(where))
        except Exception as error:  # noqa: BLE001 - the daemons after it are run, too
            traceback.print_exc()
            print(f"{daemon.program}: FAILED: {error!r}", flush=True)
            failed += 1
            continue
        failed += plain.seen != ours.seen
        rows.append(_row(daemon, plain, ours))
        print(rows[-1], flush=True)
    print("\n".join(rows))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
