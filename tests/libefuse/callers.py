# SPDX-License-Identifier: LGPL-2.1-or-later
"""Users of a mount whose daemon ends."""

from __future__ import annotations

import contextlib
import os


def ask_until_it_fails(root: int) -> int:
    """Ask by a descriptor of the root, again and again; return how often it was answered.

    The path leads elsewhere when the file system is unmounted.
    """
    done = 0
    with contextlib.suppress(OSError):
        while True:
            os.stat(root)
            done += 1
    return done
