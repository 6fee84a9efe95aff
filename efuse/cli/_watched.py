# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands that watch the requests of a mount: find the mount, and end on a signal."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from efuse.control import Mount, find, mounts
from efuse.errors import ControlError

__all__ = ["until_interrupted", "watched_mount"]


def watched_mount(where: str) -> Mount:
    """Return the FUSE or eFuse mount at a path, or with this connection number.

    :raises ControlError: there is no such mount.
    """
    if not where.isdecimal():
        return find(where, fuse=True)
    for mount in mounts(fuse=True):
        if mount.connection == int(where):
            return mount
    raise ControlError(
        f"there is no FUSE mount with connection {where}",
        hint="efuse stat, without a path, lists them",
    )


@contextmanager
def until_interrupted() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT (Ctrl-C) or SIGTERM arrived.

    A second signal ends the process. If the reader of the output ends first, as ``head`` does, the
    watch ends as well.
    """
    seen = False

    def note(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        signal.signal(number, before[number])

    numbers = (int(signal.SIGINT), int(signal.SIGTERM))
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: seen
        sys.stdout.flush()
    except BrokenPipeError:
        # So that the interpreter does not fail to flush the output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
