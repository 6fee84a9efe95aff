# SPDX-License-Identifier: LGPL-2.1-or-later
"""Wait for changes of the table of mounts."""

from __future__ import annotations

import contextlib
import math
import os
import select
from collections.abc import Callable

import trio

from efuse.control.mounts import MOUNTINFO

__all__ = ["watch_table"]


_AGAIN_S = 1.0


async def watch_table(changed: Callable[[], bool]) -> None:
    """Call *changed* now and after each change of the table of mounts, until cancelled.

    :param changed: returns whether it succeeded. If not, it is called again a second later, because
        the kernel reports a change only once.
    :raises OSError: no descriptors are left, or the table cannot be opened.
    """
    with contextlib.ExitStack() as opened:
        # trio can only wait until a descriptor is readable, and the table always is. A descriptor
        # of epoll(7) is readable once the table has changed.
        changes = opened.enter_context(select.epoll())
        # An open table reports a change only once. If it comes before the wait, trio looks twice:
        # when it takes the descriptor, and when it waits. Each look takes the report of one table.
        for _ in range(2):
            table = os.open(MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, table)
            changes.register(table, select.EPOLLPRI)
        while True:
            again_s = math.inf if changed() else _AGAIN_S
            with trio.move_on_after(again_s):
                await trio.lowlevel.wait_readable(changes.fileno())
            changes.poll(0)
