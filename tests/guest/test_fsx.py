# SPDX-License-Identifier: LGPL-2.1-or-later
"""Random operations on one file of a mount, on each path: no byte is ever another than written.

``EFUSE_FSX_OPERATIONS`` says how many operations a case takes (100000 for the long run, in which
each takes minutes), ``EFUSE_FSX_SEED`` where they begin: the same seed does the same again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.guest.forced import WORDS, forced
from tests.guest.fsx import Exerciser, View

OPERATIONS = int(os.environ.get("EFUSE_FSX_OPERATIONS", "800"))
SEED = int(os.environ.get("EFUSE_FSX_SEED", "20261121"))


def _exercise(exerciser: Exerciser) -> None:
    start = time.monotonic()
    exerciser.run(OPERATIONS)
    took = time.monotonic() - start
    print(f"seed {SEED}, {OPERATIONS} operations in {took:.0f} s: {dict(exerciser.done)}")


@pytest.mark.parametrize("path", WORDS)
def test_one_descriptor(lower: Path, mountpoint: Path, path: str) -> None:
    (lower / "f").touch()
    with forced(lower, mountpoint, path, consistency="exclusive", attr_timeout=3600) as m:
        _exercise(Exerciser([View(m / "f")], lower / "f", SEED))
        m.show_that_it_ran(OPERATIONS // 4)


@pytest.mark.parametrize("writeback", [False, True], ids=["write_through", "writeback"])
@pytest.mark.parametrize("path", WORDS)
def test_two_descriptors(lower: Path, mountpoint: Path, path: str, writeback: bool) -> None:
    """One of them past the page cache."""
    (lower / "f").touch()
    with forced(lower, mountpoint, path, writeback=writeback) as m:
        views = [View(m / "f"), View(m / "f", os.O_DIRECT)]
        _exercise(Exerciser(views, lower / "f", SEED))
        m.show_that_it_ran(OPERATIONS // 4)


@pytest.mark.parametrize("path", WORDS)
def test_two_mounts(lower: Path, mountpoint: Path, path: str) -> None:
    """Of one directory: nothing is kept, so what one writes is what the other reads at once."""
    (lower / "f").touch()
    with (
        forced(lower, mountpoint / "1", path, consistency="strict") as one,
        forced(lower, mountpoint / "2", path, consistency="strict") as other,
    ):
        views = [
            View(m / "f", flags, reads=bool(flags))
            for m in (one, other)
            for flags in (0, os.O_DIRECT)
        ]
        _exercise(Exerciser(views, lower / "f", SEED, mapped=False))
        for m in (one, other):
            m.show_that_it_ran(OPERATIONS // 8, kept=False)
