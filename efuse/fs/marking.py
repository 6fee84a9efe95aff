# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mark processes that manage eFuse mounts by themselves, so that `efuse run` leaves them alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["is_marked", "marked"]

_NAME = "efuse-attends"


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Mark this process, and the processes that it forks within the block.

    A program that one of them executes is not marked. The mark is an open memfd with a certain
    name. It cannot be an environment variable, because /proc shows the environment with which a
    process was started.
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
    """Tell whether the process is marked; False if this process may not see its descriptors."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(f"/memfd:{_NAME} "):
                    return True
    return False
