# SPDX-License-Identifier: LGPL-2.1-or-later
"""A short run of the fuzzer; docs/verification.md describes it.

EFUSE_FUZZ_S is the duration of each mode in seconds, EFUSE_FUZZ_SEED the seed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from efuse.errors import ModuleBuildError
from efuse.module import live
from tests.fuzz import health
from tests.fuzz.counts import Counts
from tests.fuzz.layouts import DEVICE_IOCTLS, STORAGE_IOCTLS
from tests.fuzz.run import Run
from tests.fuzz.session import MODES
from tests.fuzz.storage_run import fuzz_storage
from tests.guest.support.daemons import eventually

SECONDS = float(os.environ.get("EFUSE_FUZZ_S", "4"))
SEED = int(os.environ.get("EFUSE_FUZZ_SEED", "1"))
MOST_TURNS = 12
"""Most mounts of each mode. On a slow machine one is not enough to try everything."""


def _untried(counts: Counts, answered: set[str]) -> list[str]:
    """Return what the run is still to try."""
    return [
        *counts.missing(DEVICE_IOCTLS),
        *({mode.name for mode in MODES if mode.handlers} - answered),
        *(DEVICE_IOCTLS.keys() - counts.succeeded.keys()),
        *({"inval_inode", "inval_entry", "store", "retrieve"} - counts.carried_out.keys()),
    ]


def _unloaded() -> bool:
    """Unload the module, if the last mount has let go of it."""
    try:
        live.unload()
    except ModuleBuildError:
        return False
    return True


def test_mount_of_a_lying_daemon_returns_only_bytes_of_the_file(
    mountpoint: Path, lower: Path, module_file: Path
) -> None:
    """The callers end, a fresh mount works, and the module can be unloaded."""
    run = Run(mountpoint, lower, SEED)
    answered: set[str] = set()
    with contextlib.closing(run.modes(SECONDS)) as modes:
        for mounts, (mode, counts) in enumerate(modes, 1):
            if counts.hits:
                answered.add(mode.name)
            turns, rest = divmod(mounts, len(MODES) + 1)
            if not rest and (not _untried(run.counts, answered) or turns == MOST_TURNS):
                break
    health.check_no_task_hangs()
    health.check_mount(mountpoint)
    eventually(_unloaded, "the module is in use")
    live.load(module_file)
    print("\n".join(run.counts.lines()))
    assert _untried(run.counts, answered) == []
    assert run.counts.checked > 0


def test_storage_functions_are_right_after_wrong_ioctls(tmp_path: Path) -> None:
    counts = fuzz_storage(tmp_path, f"{SEED} csd", SECONDS)
    print("\n".join(counts.lines()))
    assert {*counts.ioctls} == {*STORAGE_IOCTLS} == {*counts.succeeded}
