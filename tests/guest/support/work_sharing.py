# SPDX-License-Identifier: LGPL-2.1-or-later
"""Divide the test files between guests that run side by side: the first to come takes a file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "EFUSE_SHARE"
"""Name of the variable with a path whose last part is the guest's name. The directory is shared."""


_LONGEST = (
    *("test_bench_requests.py", "test_bench_io.py", "test_bench_storage.py", "test_bench.py"),
    *("test_conformance.py", "test_mounting.py", "test_channel_daemons.py"),
    *("test_channel_sanitizers.py", "test_csd.py", "test_crash_replay.py"),
    *("test_example_file_systems.py", "test_chain.py", "test_csd_device.py"),
    *("test_fuzz.py", "test_access_lists.py", "test_c_example.py", "test_schedules.py"),
)
"""The files that take longest. If such a file is begun last, the other guest has nothing to do."""


def longest_first(files: Iterable[Path]) -> list[Path]:
    """Return test files in the order in which guests take them."""
    places = {name: place for place, name in enumerate(_LONGEST)}
    return sorted(files, key=lambda file: places.get(file.name, len(places)))


def takes(me: Path, file: Path) -> bool:
    """Take a test file for this guest; return whether the guest is to run it.

    It is if no other guest has taken the file before. A guest that is booted again keeps the files
    that it had taken, but does not run those again that it has passed.

    :param me: value of `VARIABLE`.
    :param file: the test file.
    """
    # A symbolic link is made atomically, together with its contents.
    taken = _link(me, file)
    with contextlib.suppress(FileExistsError):
        taken.symlink_to(me.name)
    return os.readlink(taken) == me.name and not _mark(taken).exists()


def passed(me: Path, file: Path) -> None:
    """Note that no test of a file that this guest has taken failed."""
    _mark(_link(me, file)).touch()


def failed(me: Path, test: str) -> None:
    """Note that a test of this guest has failed, also if the guest is booted again later."""
    with _failures(me).open("a") as file:
        file.write(f"{test}\n")


def failures(me: Path) -> list[str]:
    """Return the tests of this guest that have failed, also before it was booted again."""
    path = _failures(me)
    return path.read_text().splitlines() if path.exists() else []


def _failures(me: Path) -> Path:
    return me.with_name(f"{me.name}.failures")


def _link(me: Path, file: Path) -> Path:
    return me.with_name(str(file).replace("/", "-"))


def _mark(link: Path) -> Path:
    return link.with_name(f"{link.name}.passed")
