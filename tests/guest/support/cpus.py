# SPDX-License-Identifier: LGPL-2.1-or-later
"""Restrict a test to one CPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def one_cpu() -> Iterator[None]:
    """Run this thread, and what it starts, on the lowest CPU that it may use."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
