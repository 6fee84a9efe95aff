# SPDX-License-Identifier: LGPL-2.1-or-later
"""Divide the test files between guests that run side by side: the first to come takes a file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

VARIABLE = "EFUSE_SHARE"
"""Name of the variable with a path whose last part is the guest's name. The directory is shared."""


def takes(me: Path, file: Path) -> bool:
    """Take a test file for this guest; return whether the file is its own.

    It is if no other guest has taken the file before. A guest that is booted again keeps the files
    it had taken.

    :param me: value of `VARIABLE`.
    :param file: the test file.
    """
    # A symbolic link is made atomically, together with its contents.
    taken = me.with_name(str(file).replace("/", "-"))
    with contextlib.suppress(FileExistsError):
        taken.symlink_to(me.name)
    return os.readlink(taken) == me.name
