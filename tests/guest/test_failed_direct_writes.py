# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that a direct write which fails behind the end of a file cuts off no bytes of others."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.guest.support.asynchronous import (
    PWRITE,
    Block,
    asynchronously,
    create_with_held_reply,
)
from tests.guest.support.backing_files import make
from tests.guest.support.daemons import Mount, fails, mounted, running
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.wire import FOPEN_DIRECT_IO, FOPEN_NOFLUSH

_LONGER = fill("d")


@contextmanager
def _full(m: Mount) -> Iterator[None]:
    """Let each WRITE fail."""
    m.call("deny", "write", 0, errno.ENOSPC)
    yield
    m.call("deny", "write", 0, 0)


def _grow(m: Mount) -> None:
    m.model.put("f", _LONGER)
    m.call("inval_attributes", "f")


@pytest.mark.parametrize(
    ("flags", "call"), [(FOPEN_NOFLUSH, "pwrite"), (FOPEN_NOFLUSH | FOPEN_DIRECT_IO, "io_submit")]
)
def test_direct_write_that_fails_does_not_cut_off_an_announced_end(
    mountpoint: Path, flags: int, call: str
) -> None:
    """fuse_direct_IO() truncates the file to the size that FUSE knew before the notification."""
    block = Block()
    with mounted(mountpoint, consistency="exclusive", open_flags=flags, **LONG) as m:
        make(m, "f", _LONGER[:5000])
        direct = 0 if flags & FOPEN_DIRECT_IO else os.O_DIRECT
        fd = os.open(m / "f", os.O_WRONLY | direct)
        _grow(m)
        with _full(m):
            if call == "pwrite":
                fails(errno.ENOSPC, os.pwrite, fd, block.memory, 2 * BLOCK)
            else:
                results = asynchronously(PWRITE, fd, block.address, BLOCK, 2 * BLOCK)
                assert results == [-errno.ENOSPC]
        data = bytes(m.call("inode", "f").data)
        os.close(fd)
        assert data == _LONGER, f"only {len(data)} bytes are left"


def test_direct_write_that_fails_does_not_cut_off_an_end_announced_during_it(
    mountpoint: Path,
) -> None:
    with mounted(mountpoint, consistency="exclusive", open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", _LONGER[:5000])
        fd = os.open(m / "f", os.O_WRONLY | os.O_DIRECT)
        m.hold("write", "before")
        with _full(m), running(os.pwrite, fd, Block().memory, 2 * BLOCK) as writing:
            m.wait_held()
            _grow(m)
            m.release()
            fails(errno.ENOSPC, writing.result)
        data = bytes(m.call("inode", "f").data)
        os.close(fd)
        assert data == _LONGER, f"only {len(data)} bytes are left"


def test_direct_write_that_fails_does_not_cut_off_what_an_append_has_written(
    mountpoint: Path,
) -> None:
    """The old reply of a CREATE sets FUSE's size while the daemon has the direct WRITE."""
    first = fill("b", 100)
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("nodeid_per_file",),
        default_permissions=False,
        open_flags=FOPEN_NOFLUSH,
        **LONG,
    ) as m:
        make(m, "f", first)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        direct = os.open(m / "f", os.O_WRONLY | os.O_DIRECT)
        opening = create_with_held_reply(m)
        os.write(fd, b"acknowledged")
        m.hold("write", "before")
        with _full(m), running(os.pwrite, direct, Block().memory, 2 * BLOCK) as writing:
            m.wait_held(2)
            m.release("create")
            created = opening.result()
            m.release()
            fails(errno.ENOSPC, writing.result)
        data = bytes(m.call("inode", "f").data)
        for each in (fd, direct, created):
            os.close(each)
        assert data == first + b"acknowledged"
