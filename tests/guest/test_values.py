# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test values of any size: those that fit into a map, and those that only the daemon has."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.guest.support.daemons import Mount, fails, mounted

# The largest size of a value in a map, in bytes: EFUSE_BLOB_LEN of the kernel's interface.
KEPT = 976


def _random(size: int) -> bytes:
    return os.urandom(size).replace(b"\0", b"0").replace(b"/", b"_")


@pytest.mark.parametrize("size", [1, KEPT, KEPT + 1, 4095])
def test_symlink_of_any_length_reads_back(mountpoint: Path, size: int) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        target = _random(size)
        m.model.symlink("s", target)
        path = os.fsencode(m / "s")
        assert os.readlink(path) == target
        for _ in range(2):
            with m.answered("readlink") if size <= KEPT else m.passed("readlink", "miss"):
                assert os.readlink(path) == target


@pytest.mark.parametrize("size", [0, 1, KEPT, KEPT + 1, 4096, 65536])
def test_xattr_of_any_length_reads_back(mountpoint: Path, size: int) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        value = os.urandom(size)
        m.model.create("f")
        m.model.set_xattr("f", b"user.x", value)
        assert os.getxattr(m / "f", "user.x") == value
        for _ in range(2):
            # Python first asks with room for 128 bytes, and then for 64 KiB.
            with (
                m.answered("getxattr", times=1 if size <= 128 else 2)
                if size <= KEPT
                else m.passed("getxattr", "miss")
            ):
                assert os.getxattr(m / "f", "user.x") == value


def test_xattr_list_of_any_length_reads_back(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        m.model.create("f")
        names: list[str] = []
        while len(names) * 50 < 3 * KEPT:
            names.append(f"user.{len(names):045}")
            m.model.set_xattr("f", names[-1].encode(), b"")
            m.connection.invalidate()
            for _ in range(3):
                assert os.listxattr(m / "f") == names
        assert m.count("listxattr", "hits") > 10


def _capability(m: Mount) -> None:
    """Give a file a capability in the kernel's format, and let the kernel learn it."""
    value = bytes.fromhex("0000000201000000000000000000000000000000")[:20]
    os.setxattr(m / "f", "security.capability", value)
    assert os.getxattr(m / "f", "security.capability") == value
    # The kernel, which checks the value, asks for its size first.
    with m.answered("getxattr", times=2):
        assert os.getxattr(m / "f", "security.capability") == value


def test_capability_is_gone_after_a_write(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        m.model.create("f", b"data")
        _capability(m)
        with open(m / "f", "r+b") as file:
            file.write(b"new")
        assert b"security.capability" not in m.call("inode", "f").xattrs
        for _ in range(2):
            fails(errno.ENODATA, os.getxattr, m / "f", "security.capability")


def test_xattr_is_requested_again_after_a_write(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        m.model.create("f", b"data")
        m.model.set_xattr("f", b"user.x", b"1")
        for _ in range(2):
            assert os.getxattr(m / "f", "user.x") == b"1"
        with open(m / "f", "r+b") as file:
            file.write(b"new")
            file.flush()
            m.model.set_xattr("f", b"user.x", None)
        with m.passed("getxattr", "stale"):
            fails(errno.ENODATA, os.getxattr, m / "f", "user.x")


def test_writes_request_an_absent_capability_once(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        m.model.create("f")
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"first")
        with m.answered("getxattr", times=50):
            for _ in range(50):
                os.write(fd, b"x")
        os.close(fd)
        assert m.call("inode", "f").data == b"first" + b"x" * 50
