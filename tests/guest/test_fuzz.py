# SPDX-License-Identifier: LGPL-2.1-or-later
"""A short run of the fuzzer; docs/verification.md describes it.

EFUSE_FUZZ_S is the duration of each mode in seconds, EFUSE_FUZZ_SEED the seed.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.fuzz.run import Run

SECONDS = float(os.environ.get("EFUSE_FUZZ_S", "4"))
SEED = int(os.environ.get("EFUSE_FUZZ_SEED", "1"))


def test_mount_of_a_lying_daemon_returns_only_bytes_of_the_file(
    mountpoint: Path, lower: Path
) -> None:
    """Each mode is fuzzed once, and more often until everything was tried."""
    run = Run(mountpoint, lower, SEED)
    for mode, counts in run.modes(SECONDS):
        if mode.handlers:
            assert counts.hits > 0, f"{mode.name}: the kernel answered nothing"
        if run.counts.mounts > 5:
            break
    print("\n".join(run.counts.lines()))
