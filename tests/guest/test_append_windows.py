# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test where an append goes after a change in a window that no request of the daemon opens.

A task is kept at a function of the module while the file changes.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.guest.support.backing_files import make
from tests.guest.support.daemons import Mount, force_stat, mounted
from tests.guest.support.file_data import fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.suspension import Suspension
from tests.guest.support.wire import FOPEN_NOFLUSH

_FIRST = fill("b", 100)


def _grow(m: Mount) -> None:
    m.model.put("f", bytes(m.call("inode", "f").data) + b"longer ")
    m.call("inval_attributes", "f")


def test_append_goes_to_the_end_after_a_notification_before_the_change_of_a_write_has_begun(
    mountpoint: Path,
) -> None:
    """The size was true when the WRITE was issued, and has ended before its change began."""
    with (
        mounted(mountpoint, consistency="exclusive", open_flags=FOPEN_NOFLUSH, **LONG) as m,
        Suspension("efuse_size_begun") as window,
    ):
        make(m, "f", _FIRST)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        within = os.open(m / "f", os.O_WRONLY)
        os.write(fd, b"one ")
        assert window.cross(lambda: os.pwrite(within, b"x", 3), lambda: _grow(m))
        before = bytes(m.call("inode", "f").data)
        assert before == _FIRST[:3] + b"x" + _FIRST[4:] + b"one longer "
        os.write(fd, b"two")
        os.close(within)
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == before + b"two"


def test_append_goes_to_the_end_of_a_reply_that_fuse_has_not_taken_yet(mountpoint: Path) -> None:
    """The reply to another task has told the size; FUSE still has the old one.

    That task is where `efuse_send` calls a last function before it returns to FUSE.
    """
    with (
        mounted(mountpoint, consistency="exclusive", open_flags=FOPEN_NOFLUSH, **LONG) as m,
        Suspension("efuse_part_callers") as window,
    ):
        make(m, "f", _FIRST)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"one ")
        _grow(m)
        assert window.cross(lambda: force_stat(fd), lambda: os.write(fd, b"two"))
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == _FIRST + b"one longer two"
