# SPDX-License-Identifier: LGPL-2.1-or-later
"""Wait for changes of the table of mounts."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

import trio

from efuse.control.mounts import MOUNTINFO

__all__ = ["watch_table"]


async def watch_table(changed: Callable[[], None]) -> None:
    """Call *changed* after each change of the table of mounts, until cancelled.

    :raises OSError: no descriptors are left, or the table cannot be opened.
    """
    table = os.open(MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # trio can only wait until a descriptor is readable, and the table always is. A descriptor
        # of epoll(7) is readable once the table has changed.
        with select.epoll() as changes:
            changes.register(table, select.EPOLLPRI)
            while True:
                await trio.lowlevel.wait_readable(changes.fileno())
                changes.poll(0)
                changed()
    finally:
        os.close(table)
