# SPDX-License-Identifier: LGPL-2.1-or-later
"""Wait for what no event reports."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["comes_true"]

_LOOK_S = 0.05


def comes_true(condition: Callable[[], bool], most_s: float) -> bool:
    """Wait for a condition, but not longer than that; tell whether it has come true.

    :param condition: looked at every 50 ms.
    :param most_s: the time limit in seconds.
    """
    until = time.monotonic() + most_s
    while not condition():
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_S)
    return True
