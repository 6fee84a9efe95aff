# SPDX-License-Identifier: LGPL-2.1-or-later
"""Only a handler whose reply gives the kernel a nodeid may map extents of a nodeid before it."""

from __future__ import annotations

from typing import Any

import pyfuse3
import pytest
import trio

from efuse.fs.guard import Guard
from efuse.fs.handing_out import handing_out


class _Asks(pyfuse3.Operations):
    """Ask within handlers, and in a task that goes on after the handler has returned."""

    def __init__(self, nursery: trio.Nursery, *, fails: bool) -> None:
        super().__init__()
        self._nursery = nursery
        self._fails = fails
        self.replied = trio.Event()
        self.found: list[tuple[str, bool]] = []

    async def _outlive(self, task_status: trio.TaskStatus[None]) -> None:
        self.found.append(("task during the handler", handing_out()))
        task_status.started()
        await self.replied.wait()
        self.found.append(("task after the handler", handing_out()))

    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        self.found.append(("lookup", handing_out()))
        await self._nursery.start(self._outlive)
        if self._fails:
            raise pyfuse3.FUSEError(2)
        return pyfuse3.EntryAttributes()

    async def getattr(self, inode: int, ctx: Any = None) -> pyfuse3.EntryAttributes:
        self.found.append(("getattr", handing_out()))
        return pyfuse3.EntryAttributes()


@pytest.mark.parametrize("fails", [False, True])
def test_only_handlers_that_return_a_nodeid_are_noted_until_they_return(fails: bool) -> None:
    async def use() -> list[tuple[str, bool]]:
        async with trio.open_nursery() as nursery:
            asks = _Asks(nursery, fails=fails)
            guard: Any = Guard(asks, failed=print, called=lambda name: None)
            await guard.getattr(1, None)
            try:
                await guard.lookup(1, b"x", None)
            except pyfuse3.FUSEError:
                assert fails
            await guard.getattr(1, None)
            asks.replied.set()
        return asks.found

    assert trio.run(use) == [
        ("getattr", False),
        ("lookup", True),
        ("task during the handler", True),
        ("getattr", False),
        ("task after the handler", False),
    ]
