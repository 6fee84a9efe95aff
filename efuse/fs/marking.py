# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mark of processes that attend to mounts of eFuse themselves: `efuse run` leaves them alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["is_marked", "marked"]

_NAME = "efuse-attends"


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Mark this process, and those that it forks meanwhile, but no program that they start.

    The environment cannot tell: what a process shows of it is what it was started with.
    """
    fd = -1
    with contextlib.suppress(OSError):  # no descriptors are left, or it is not allowed
        fd = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def is_marked(pid: int) -> bool:
    """Tell whether the process is marked, as far as this one may know."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(f"/memfd:{_NAME} "):
                    return True
    return False
