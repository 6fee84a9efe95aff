# SPDX-License-Identifier: LGPL-2.1-or-later
"""Do random operations on one file of a mount, on each path: every byte has to be as written.

``EFUSE_FSX_OPERATIONS`` is the number of operations of a case. A long run uses 100000, and takes
minutes for each case. ``EFUSE_FSX_SEED`` is the seed: the same seed repeats the same operations.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import trio

import efuse
from tests.guest.support.forced import WORDS, forced
from tests.guest.support.fsx import Exerciser, View

OPERATIONS = int(os.environ.get("EFUSE_FSX_OPERATIONS", "250"))
SEED = int(os.environ.get("EFUSE_FSX_SEED", "20261121"))


def _exercise(exerciser: Exerciser) -> None:
    start = time.monotonic()
    exerciser.run(OPERATIONS)
    took = time.monotonic() - start
    print(f"seed {SEED}, {OPERATIONS} operations in {took:.0f} s: {dict(exerciser.done)}")


@pytest.mark.parametrize("path", WORDS)
def test_fsx_by_one_descriptor_finds_no_difference(
    lower: Path, mountpoint: Path, path: str
) -> None:
    (lower / "f").touch()
    with forced(lower, mountpoint, path, consistency="exclusive", attr_timeout=3600) as m:
        _exercise(Exerciser([View(m / "f")], lower / "f", SEED))
        m.show_that_it_ran(OPERATIONS // 4)


@pytest.mark.parametrize("writeback", [False, True], ids=["write_through", "writeback"])
@pytest.mark.parametrize("path", WORDS)
def test_fsx_by_two_descriptors_finds_no_difference(
    lower: Path, mountpoint: Path, path: str, writeback: bool
) -> None:
    """One of the descriptors goes past the page cache."""
    (lower / "f").touch()
    with forced(lower, mountpoint, path, writeback=writeback) as m:
        views = [View(m / "f"), View(m / "f", os.O_DIRECT)]
        _exercise(Exerciser(views, lower / "f", SEED))
        m.show_that_it_ran(OPERATIONS // 4)


@pytest.mark.parametrize("path", WORDS)
def test_fsx_by_two_strict_mounts_finds_no_difference(
    lower: Path, mountpoint: Path, path: str
) -> None:
    """In two strict mounts of one directory, a read sees the other mount's write immediately."""
    (lower / "f").touch()
    with (
        forced(lower, mountpoint / "1", path, consistency="strict") as one,
        forced(lower, mountpoint / "2", path, consistency="strict") as other,
    ):
        views = [
            View(m / "f", flags, reads=bool(flags))
            for m in (one, other)
            for flags in (0, os.O_DIRECT)
        ]
        _exercise(Exerciser(views, lower / "f", SEED, mapped=False))
        for m in (one, other):
            m.show_that_it_ran(OPERATIONS // 8, kept=False)


class _Notifying(efuse.Passthrough):
    """One of two mounts of a directory, each of which notifies the other before it replies.

    The socket ``ours`` is for notifications from the other mount and for its confirmations, and the
    socket ``other`` is for notifications to the other mount.
    """

    def __init__(self, lower: Path, ours: socket.socket, other: socket.socket) -> None:
        super().__init__(lower, attr_timeout=3600, entry_timeout=3600)
        self._sockets = ours, other
        self._opened: set[int] = set()

    def init(self) -> None:
        super().init()
        self._ours, self._other = (trio.socket.from_stdlib_socket(s) for s in self._sockets)
        trio.lowlevel.spawn_system_task(self._obey)

    def backing(self, inode: int, fd: int, **extent: Any) -> bool:
        # The daemon could not notify the other mount of writes by the kernel.
        return super().backing(inode, fd, **extent | {"write": False})

    async def open(self, inode: int, flags: int, ctx: Any) -> Any:
        self._opened.add(inode)
        return await super().open(inode, flags, ctx)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        done = await super().write(fh, off, buf)
        await self._tell()
        return done

    async def setattr(self, *args: Any) -> Any:
        attributes = await super().setattr(*args)
        await self._tell()
        return attributes

    async def _tell(self) -> None:
        await self._other.send(b"?")
        assert await self._other.recv(1) == b"!"

    async def _obey(self) -> None:
        while await self._ours.recv(1):
            for inode in self._opened:
                await self.invalidate(inode)
            await self._ours.send(b"!")


@pytest.mark.parametrize("path", WORDS)
def test_fsx_by_two_mounts_that_notify_finds_no_difference(
    lower: Path, mountpoint: Path, path: str
) -> None:
    """Each mount keeps the data that it has read until the other mount notifies it."""
    (lower / "f").touch()
    (ours, to_ours), (theirs, to_theirs) = socket.socketpair(), socket.socketpair()
    daemons = _Notifying(lower, ours, to_theirs), _Notifying(lower, theirs, to_ours)
    with (
        ours,
        to_ours,
        theirs,
        to_theirs,
        forced(lower, mountpoint / "1", path, daemons[0]) as one,
        forced(lower, mountpoint / "2", path, daemons[1]) as other,
    ):
        views = [View(m / "f", flags) for m in (one, other) for flags in (0, os.O_DIRECT)]
        _exercise(Exerciser(views, lower / "f", SEED, mapped=False))
        for m in (one, other):
            # With a write() of their own they have no data cache, which would have to learn from
            # writes.
            m.show_that_it_ran(OPERATIONS // 8, kept=path != "cache")
