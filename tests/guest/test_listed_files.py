# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that a file which the kernel knows from a listing is like one that was looked up.

In exclusive mode the attributes in a READDIRPLUS tell that a file has one name, and how long it is.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.guest.support import wire
from tests.guest.support.daemons import Mount, eventually, mounted
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.wire import FOPEN_NOFLUSH

_LENGTH = 10 * BLOCK
_NO_TIMEOUT = {"entry_timeout": 0.0, "attr_timeout": 0.0}


def _list(m: Mount) -> None:
    m.log()
    assert os.listdir(m.path) == ["f"]
    assert "readdirplus" in m.asked()


@pytest.mark.parametrize("how", ["lookup", "list", "create"])
def test_kernel_answers_for_listed_and_created_files_in_exclusive_mode(
    mountpoint: Path, how: str
) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        open_flags=FOPEN_NOFLUSH,
        path="cache",
        **_NO_TIMEOUT,
    ) as m:
        if how == "create":
            os.close(os.open(m / "f", os.O_CREAT | os.O_RDWR))
            os.setxattr(m / "f", "user.x", b"old")
        else:
            m.model.create("f", b"o" * BLOCK)
            m.model.set_xattr("f", b"user.x", b"old")
        if how == "list":
            _list(m)
        os.stat(m / "f")
        assert os.getxattr(m / "f", "user.x") == b"old"
        m.log()
        for _ in range(3):
            os.stat(m / "f")
            assert os.getxattr(m / "f", "user.x") == b"old"
        assert m.asked() == []


@pytest.mark.parametrize("how", ["lookup", "list"])
def test_pages_stay_over_open_in_exclusive_mode(mountpoint: Path, how: str) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        open_flags=FOPEN_NOFLUSH,
        path="daemon",
        **_NO_TIMEOUT,
    ) as m:
        m.model.create("f", b"o" * BLOCK)
        if how == "list":
            _list(m)
        os.stat(m / "f")
        for _ in range(3):
            m.log()
            assert Path(m / "f").read_bytes() == b"o" * BLOCK
            asked = m.asked()
        assert "read" not in asked


@pytest.mark.parametrize("how", ["lookup", "list"])
def test_attributes_outlive_the_inode_with_stable_nodeids(mountpoint: Path, how: str) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("stable_nodeids",),
        open_flags=FOPEN_NOFLUSH,
        **LONG,
    ) as m:
        m.model.create("f", b"o" * BLOCK)
        if how == "list":
            _list(m)
        os.stat(m / "f")
        eventually(m.balanced)
        m.log()
        os.stat(m / "f")
        assert "lookup" not in m.asked()


@pytest.mark.parametrize("how", ["lookup", "list"])
def test_write_within_the_file_leaves_the_last_cached_block_valid_in_exclusive_mode(
    mountpoint: Path, how: str
) -> None:
    """The size is known: a WRITE within it changes only its own blocks."""
    data = fill("d", _LENGTH - 1000)
    with mounted(
        mountpoint, consistency="exclusive", open_flags=FOPEN_NOFLUSH, path="cache", **LONG
    ) as m:
        m.model.create("f", data)
        if how == "list":
            _list(m)
        fd = os.open(m / "f", os.O_RDWR)
        direct = os.open(m / "f", os.O_RDWR | os.O_DIRECT)
        with mmap.mmap(-1, BLOCK) as buffer:
            assert os.preadv(direct, [buffer], 9 * BLOCK) == BLOCK - 1000
            assert os.pwrite(fd, b"w" * BLOCK, 0) == BLOCK
            m.log()
            assert os.preadv(direct, [buffer], 9 * BLOCK) == BLOCK - 1000
        asked = m.asked()
        os.close(direct)
        os.close(fd)
        assert "read" not in asked


def test_listing_of_a_directory_leaves_the_names_in_it_valid(
    mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some daemons report one link for each directory. A LOOKUP has brought the first attributes.

    A listing tells that a file has one name left, and voids what is known of it. A directory never
    had another name.
    """
    counted = wire.attributes

    def one_link(ino: int, size: int, times: Any, mode: int, nlink: int, *rest: Any) -> bytes:
        return counted(ino, size, times, mode, 1 if stat.S_ISDIR(mode) else nlink, *rest)

    monkeypatch.setattr(wire, "attributes", one_link)
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        m.model.mkdir("d")
        m.model.create("d/f", b"data")
        assert os.stat(m / "d/f").st_size == 4
        m.log()
        assert os.listdir(m.path) == ["d"]
        assert "readdirplus" in m.asked()
        assert os.stat(m / "d/f").st_size == 4
        assert not {"lookup", "getattr"} & set(m.asked())
