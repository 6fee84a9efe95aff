# SPDX-License-Identifier: LGPL-2.1-or-later
"""Callers of a mount whose daemon ends."""

from __future__ import annotations

import contextlib
import os


def ask_until_it_fails(root: int) -> int:
    """Call stat on a descriptor of the root until it fails; return how often it succeeded.

    A path would not do: after the unmount it leads to another directory.
    """
    done = 0
    with contextlib.suppress(OSError):
        while True:
            os.stat(root)
            done += 1
    return done
