# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test read(2) of a file for which the daemon tells almost the largest size that there is."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from tests.guest.support import wire
from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Mount, force_stat, mounted, running
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.wire import FOPEN_NOFLUSH


def _seen_size(m: Mount, size: int) -> None:
    """Let the daemon tell a size of the file ``f`` that its data does not have."""
    inode = m.call("inode", "f")
    times = inode.atime_ns, inode.mtime_ns, inode.ctime_ns
    m.call("inval_attributes", "f")
    m.hold("getattr", "before")
    with running(force_stat, m / "f") as asking:
        m.wait_held()
        held = m.call("_held.pop", 0)
        attributes = wire.attributes(inode.ino, size, times, inode.mode, 1, 0, 0, 0)
        answer = wire.attr_out(600.0, attributes)
        m.call("_send", wire.reply(held.request.unique, 0, answer))
        assert asking.result().st_size == size


@pytest.mark.parametrize("size", [1 << 62, (1 << 63) - 2 * BLOCK, (1 << 63) - BLOCK])
def test_read_of_a_file_of_almost_the_largest_size_returns_its_bytes(
    mountpoint: Path, lower: Path, size: int
) -> None:
    """The caller's buffer was read, but not written: a store to it faults."""
    path = backing(lower, fill("d", 8 * BLOCK))
    with mounted(mountpoint, consistency="exclusive", open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("d", 8 * BLOCK))
        whole(m, path)
        fd = os.open(m / "f", os.O_RDONLY)
        _seen_size(m, size)
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        with mmap.mmap(-1, 4 * BLOCK, private) as buffer, memoryview(buffer) as view:
            assert not any(buffer[at] for at in range(0, 4 * BLOCK, BLOCK))
            moved = os.preadv(fd, [view], 0)
            assert moved > 0
            assert bytes(view[:moved]) == fill("d", 8 * BLOCK)[:moved]
        os.close(fd)
