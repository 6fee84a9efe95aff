# SPDX-License-Identifier: LGPL-2.1-or-later
"""Replay crashes below eFuse mounts, and look for what fsync(2) acknowledged.

Run it in a guest: scripts/crash-replay. It prints a line for each way to mount. The exit status is
1 if something acknowledged was lost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.crash.disk import FILE_SYSTEMS
from tests.crash.run import SETTINGS, replayed

_STEPS_PER_PREFIX = 0.25


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main() -> int:
    parser = argparse.ArgumentParser(prog="crash-replay", description=__doc__)
    parser.add_argument(
        "--prefixes",
        type=_positive,
        default=200,
        help="crashes for each way to mount (default: 200)",
    )
    parser.add_argument(
        "--file-system",
        choices=[*FILE_SYSTEMS],
        default="ext4",
        help="the file system below (default: ext4)",
    )
    parser.add_argument("--seed", type=int, default=1, help="start of the random numbers")
    given = parser.parse_args()
    lost = crashes = 0
    for setting in SETTINGS:
        with tempfile.TemporaryDirectory(prefix="efuse-crash-") as base:
            result = replayed(
                Path(base),
                setting,
                steps=max(20, int(given.prefixes * _STEPS_PER_PREFIX)),
                prefixes=given.prefixes,
                seed=given.seed,
                kind=given.file_system,
            )
        print(
            f"{given.file_system}, {setting}: {result.prefixes} crashes,"
            f" {result.acknowledged} acknowledgements, {result.barriers} flushes,"
            f" requests by path {result.answered}",
            flush=True,
        )
        for violation in result.violations[:20]:
            print(f"  LOST: {violation}", flush=True)
        lost += len(result.violations)
        crashes += result.prefixes
    print(f"crash-replay: {crashes} crashes, {lost} violations, seed {given.seed}")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
