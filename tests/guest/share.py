# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which of the guests that run side by side takes which file of tests: who comes to it first."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

VARIABLE = "EFUSE_SHARE"
"""A path, of which the last part is the guest's own name. What lies beside it is shared."""


def takes(me: Path, file: Path) -> bool:
    """Is the file *file* of tests ours? It is if no other guest has taken it before.

    A guest that is booted again finds what it had taken.

    :param me: see `VARIABLE`.
    """
    # A symbolic link is made in one step, with what it says.
    taken = me.with_name(str(file).replace("/", "-"))
    with contextlib.suppress(FileExistsError):
        taken.symlink_to(me.name)
    return os.readlink(taken) == me.name
