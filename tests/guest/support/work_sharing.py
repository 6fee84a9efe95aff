# SPDX-License-Identifier: LGPL-2.1-or-later
"""Divide the test files between guests that run side by side: the first to come takes a file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

VARIABLE = "EFUSE_SHARE"
"""Name of the variable with a path whose last part is the guest's name. The directory is shared."""


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
