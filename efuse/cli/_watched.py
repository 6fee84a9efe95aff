# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mount whose requests a command watches, and the end of watching."""

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
    """Return the FUSE or eFuse mount that a person named by a path or by its connection's number.

    :raises ControlError: there is none.
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
    """Yield what says whether Ctrl-C, or a SIGTERM, was sent. A second one ends the process.

    What reads the output may end first, as ``head`` does: then that is the end, too.
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
        # So that nothing is written there at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
