# SPDX-License-Identifier: LGPL-2.1-or-later
"""A short run of the fuzzer; docs/verification.md describes it.

EFUSE_FUZZ_S is the duration of each mode in seconds, EFUSE_FUZZ_SEED the seed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from efuse.module import live
from tests.fuzz import health
from tests.fuzz.layouts import STORAGE_IOCTLS
from tests.fuzz.run import Run
from tests.fuzz.session import MODES
from tests.fuzz.storage_run import fuzz_storage

SECONDS = float(os.environ.get("EFUSE_FUZZ_S", "4"))
SEED = int(os.environ.get("EFUSE_FUZZ_SEED", "1"))
MOST_TURNS = 12
"""Most mounts of each mode. On a slow machine one is not enough to try everything."""


def test_mount_of_a_lying_daemon_returns_only_bytes_of_the_file(
    mountpoint: Path, lower: Path, module_file: Path
) -> None:
    """The callers end, a fresh mount works, and the module can be unloaded."""
    run = Run(mountpoint, lower, SEED)
    with contextlib.closing(run.modes(SECONDS)) as modes:
        for mounts, _ in enumerate(modes, 1):
            turns, rest = divmod(mounts, len(MODES) + 1)
            if not rest and (not run.untried() or turns == MOST_TURNS):
                break
    health.check_no_task_hangs()
    health.check_mount(mountpoint)
    health.unload()
    live.load(module_file)
    print("\n".join(run.counts.lines()))
    assert run.untried() == []


def test_storage_functions_are_right_after_wrong_ioctls(tmp_path: Path) -> None:
    counts = fuzz_storage(tmp_path, f"{SEED} csd", SECONDS)
    print("\n".join(counts.lines()))
    assert {*counts.ioctls} == {*STORAGE_IOCTLS} == {*counts.succeeded}
