# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that names and extended attributes are not shown after newer ones that were not learned.

Another program has changed them, so the kernel does not know of the change.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from pathlib import Path

import pytest

from efuse.bpf import compile_handlers
from tests.guest.support.daemons import (
    as_user,
    eventually,
    fails,
    monotonic_ns,
    mounted,
    running,
)

_LONG = 600.0
_GETFLAGS = 0x80086601  # FS_IOC_GETFLAGS
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.mark.parametrize("mode", ["ttl", "cto"])
def test_name_that_a_lookup_found_missing_is_not_shown_again(mountpoint: Path, mode: str) -> None:
    """The attributes have expired, and the name is still learned, when the LOOKUP is sent."""
    with mounted(mountpoint, consistency=mode, entry_timeout=_LONG, attr_timeout=1.0) as m:
        m.model.create("f", b"data")
        m.model.hard_link("f", "g")
        fd = os.open(m / "g", os.O_RDONLY)
        os.stat(m / "f")
        m.model.remove("f")
        m.drop()
        end = monotonic_ns() + 1_100_000_000
        eventually(lambda: monotonic_ns() > end)
        fails(errno.ENOENT, os.stat, m / "f")
        # The attributes are known again.
        os.fstat(fd)
        fails(errno.ENOENT, os.stat, m / "f")
        os.close(fd)


def test_name_in_a_listing_without_a_timeout_voids_the_learned_name(
    mountpoint: Path,
) -> None:
    with mounted(mountpoint, entry_timeout=_LONG, attr_timeout=_LONG) as m:
        m.model.create("f", b"old bytes")
        m.model.hard_link("f", "g")
        fd = os.open(m / "g", os.O_RDONLY)
        os.stat(m / "f")
        m.model.remove("f")
        m.model.create("f", b"new")
        m.call("answer_with", entry_timeout=0.0, attr_timeout=_LONG)
        os.listdir(m.path)
        assert os.stat(m / "f").st_size == 3
        os.close(fd)


@pytest.mark.usefixtures("reachable")
def test_name_that_another_caller_found_missing_is_void_also_without_a_learn_handler(
    mountpoint: Path,
) -> None:
    """The set of programs was replaced by one that answers from the same maps, but learns not."""
    with mounted(
        mountpoint, default_permissions=False, entry_timeout=_LONG, attr_timeout=_LONG
    ) as m:
        m.model.create("f", b"data")
        m.model.hard_link("f", "g")
        fd = os.open(m / "g", os.O_RDONLY)
        os.stat(m / "f")
        m.drop()
        assert m.attachment
        m.attachment.replace(spec=compile_handlers(without=("learn",)))
        hits = m.count("lookup", "hits")
        os.stat(m / "f")
        assert m.count("lookup", "hits") == hits + 1
        m.model.remove("f")
        fails(errno.ENOENT, as_user, 1000, os.stat, m / "f")
        fails(errno.ENOENT, os.stat, m / "f")
        os.close(fd)


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize(
    "later", [None, b"new", bytes(1000)], ids=["removed", "short", "longer than a map can hold"]
)
def test_xattr_shown_to_another_caller_voids_the_learned_one(
    mountpoint: Path, later: bytes | None
) -> None:
    """Without `default_permissions` an answer is kept for one caller only."""
    with mounted(
        mountpoint, default_permissions=False, entry_timeout=_LONG, attr_timeout=_LONG
    ) as m:
        m.model.create("f", b"data")
        m.model.set_xattr("f", b"user.x", b"old")
        assert os.getxattr(m / "f", "user.x") == b"old"
        hits = m.count("getxattr", "hits")
        assert os.getxattr(m / "f", "user.x") == b"old"
        assert m.count("getxattr", "hits") == hits + 1
        m.model.set_xattr("f", b"user.x", later)
        if later:
            assert as_user(1000, os.getxattr, m / "f", "user.x") == later
            assert os.getxattr(m / "f", "user.x") == later
        else:
            fails(errno.ENODATA, as_user, 1000, os.getxattr, m / "f", "user.x")
            fails(errno.ENODATA, os.getxattr, m / "f", "user.x")


@pytest.mark.usefixtures("reachable")
def test_xattr_length_shown_to_another_caller_voids_the_learned_xattr(
    mountpoint: Path,
) -> None:
    with mounted(
        mountpoint, default_permissions=False, entry_timeout=_LONG, attr_timeout=_LONG
    ) as m:
        m.model.create("f", b"data")
        m.model.set_xattr("f", b"user.x", b"old")
        assert os.getxattr(m / "f", "user.x") == b"old"
        m.model.set_xattr("f", b"user.x", b"newer")
        path, name = os.fsencode(m / "f"), b"user.x"
        assert as_user(1000, _libc.getxattr, path, name, None, ctypes.c_size_t(0)) == 5
        assert os.getxattr(m / "f", "user.x") == b"newer"


@pytest.mark.parametrize("what", ["getxattr", "listxattr"])
def test_xattr_reply_that_crosses_an_unsupported_ioctl_voids_the_learned_xattr(
    mountpoint: Path, what: str
) -> None:
    """The ioctl may have changed it, so the newer one is not learned."""
    with mounted(mountpoint, ioctl=(errno.ENOTTY, 0), entry_timeout=_LONG, attr_timeout=_LONG) as m:
        m.model.create("f", b"data")
        m.model.set_xattr("f", b"user.x", b"old")
        fd = os.open(m / "f", os.O_RDONLY)

        def get() -> object:
            if what == "getxattr":
                return os.getxattr(m / "f", "user.x")
            return sorted(os.listxattr(m / "f"))

        old = get()
        with m.answered(what):
            assert get() == old
        m.hold("ioctl", "after")
        with m.threads(1) as pool:
            call = pool.submit(fcntl.ioctl, fd, _GETFLAGS, bytearray(8))
            m.wait_held()
            m.model.set_xattr("f", b"user.x", b"newer")
            m.model.set_xattr("f", b"user.y", b"other")
            new = get()
            m.release()
            fails(errno.ENOTTY, call.result)
        os.close(fd)
        assert new != old
        assert get() == new


@pytest.mark.parametrize("how", ["lookup", "readdirplus"])
def test_names_without_a_timeout_leave_other_values_valid(mountpoint: Path, how: str) -> None:
    """Each would end all values that share a bucket with it. A listing changes the access time."""
    declare = ("stable_nodeids",)
    with mounted(mountpoint, declare=declare, entry_timeout=_LONG, attr_timeout=_LONG) as m:
        m.model.create("f", b"data")
        m.model.mkdir("d")
        for number in range(100):
            m.model.create(f"d/{number}", b"")
        os.stat(m / "f")
        os.stat(m / "d")
        m.call("answer_with", entry_timeout=0.0, attr_timeout=0.0)
        m.log()
        epoch = m.connection.epoch
        if how == "lookup":
            for number in range(100, 200):
                fails(errno.ENOENT, os.stat, m / f"d/{number}")
        else:
            assert len(os.listdir(m / "d")) == 100
        assert m.connection.epoch == epoch + m.asked().count("readdirplus")


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("attach", [True, False], ids=["eFuse", "plain"])
def test_name_whose_lookup_was_refused_is_not_shown_again(
    mountpoint: Path, attach: bool, error: int
) -> None:
    """The name is valid for longer than the attributes, so that a LOOKUP asks for them."""
    options = {"default_permissions": False, "entry_timeout": _LONG, "attr_timeout": 1.0}
    with mounted(mountpoint, attach=attach, **options) as m:
        m.model.create("f", b"data")
        m.model.hard_link("f", "g")
        fd = os.open(m / "g", os.O_RDONLY)
        os.stat(m / "f")
        m.call("deny", "lookup", 0, error)
        m.drop()
        end = monotonic_ns() + 1_100_000_000
        eventually(lambda: monotonic_ns() > end)
        fails(error, os.stat, m / "f")
        # The attributes are learned again, and the name would be valid.
        m.call("answer_with", attr_timeout=_LONG)
        os.fstat(fd)
        fails(error, os.stat, m / "f")
        os.close(fd)


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("mode", ["ttl", "exclusive"])
@pytest.mark.parametrize("how", ["length", "long value"])
def test_xattr_of_a_file_with_several_nodeids_is_void_after_a_newer_one_was_shown(
    mountpoint: Path, mode: str, how: str
) -> None:
    """The change comes by the other nodeid, also where all changes come through the mount."""
    options = {"consistency": mode, "nodeid_per_name": True, "default_permissions": False}
    with mounted(mountpoint, entry_timeout=_LONG, attr_timeout=_LONG, **options) as m:
        m.model.create("f", b"data")
        m.model.set_xattr("f", b"user.x", b"old")
        m.model.hard_link("f", "g")
        assert os.getxattr(m / "f", "user.x") == b"old"
        hits = m.count("getxattr", "hits")
        assert os.getxattr(m / "f", "user.x") == b"old"
        assert m.count("getxattr", "hits") == hits + 1
        new = b"newer" if how == "length" else bytes(1000)
        os.setxattr(m / "g", "user.x", new)
        if how == "length":
            path, name = os.fsencode(m / "f"), b"user.x"
            assert as_user(1000, _libc.getxattr, path, name, None, ctypes.c_size_t(0)) == len(new)
        else:
            assert as_user(1000, os.getxattr, m / "f", "user.x") == new
        assert os.getxattr(m / "f", "user.x") == new


@pytest.mark.parametrize("attach", [True, False], ids=["eFuse", "plain"])
def test_access_that_was_refused_is_not_granted_again(mountpoint: Path, attach: bool) -> None:
    """The request goes to the daemon because of an ioctl(2) that then turns out to do nothing."""
    options = {"default_permissions": False, "ioctl": (errno.ENOTTY, 0), "attach": attach}
    with mounted(mountpoint, entry_timeout=_LONG, attr_timeout=_LONG, **options) as m:
        m.model.create("f", b"data")
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.access(m / "f", os.R_OK)
        assert os.access(m / "f", os.R_OK)
        assert m.count("access", "hits") == attach
        m.call("deny", "access", 0, errno.EACCES)
        m.hold("ioctl", "after")
        with running(fails, errno.ENOTTY, fcntl.ioctl, fd, _GETFLAGS, bytearray(8)) as call:
            m.wait_held()
            assert not os.access(m / "f", os.R_OK)
            m.release()
            call.result()
        assert not os.access(m / "f", os.R_OK)
        os.close(fd)
