# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that attributes which the kernel has learned are not shown after newer ones.

Another program has changed the file, so the kernel does not know of the change. The newer
attributes come in a reply that is not learned, or that FUSE drops.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.access_lists import ACCESS, ALICE, BOB, encoded
from tests.guest.support import scripted_daemon, wire
from tests.guest.support.backing_files import backing, make
from tests.guest.support.daemons import (
    Call,
    Mount,
    Statx,
    as_user,
    birth_stat,
    fails,
    force_stat,
    mounted,
    running,
)
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.wire import FOPEN_NOFLUSH, FUSE_WRITEBACK_CACHE

_LONG = 600.0
_TIMEOUTS: dict[str, Any] = {"entry_timeout": _LONG, "attr_timeout": _LONG}
_ONLY_ATTRIBUTES: dict[str, Any] = {"entry_timeout": 0.0, "attr_timeout": _LONG}
_SEVERAL_NODEIDS: dict[str, Any] = {
    "consistency": "exclusive",
    "nodeid_per_name": True,
    "statx": True,
    "declare": ("lazy_atime",),
    **_TIMEOUTS,
}
_DATA = fill("d", 10 * BLOCK)
_LEFT = _DATA[: 2 * BLOCK]
_STATX_BLOCKS = 0x400
_GETFLAGS = 0x80086601  # FS_IOC_GETFLAGS
_FUSE_ATTR_SUBMOUNT = 1


def test_lookup_after_statx_shows_nothing_older(mountpoint: Path) -> None:
    with mounted(mountpoint, statx=True, **_TIMEOUTS) as m:
        m.model.create("f", b"old bytes")
        m.model.hard_link("f", "g")
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.stat(m / "g").st_size == 9
        m.drop()
        m.model.put("f", b"new")
        assert birth_stat(fd).st_size == 3
        assert os.stat(m / "g").st_size == 3
        os.close(fd)


def test_getattr_after_statx_shows_nothing_older(mountpoint: Path) -> None:
    """A read(2) makes FUSE ask for the access time."""
    with mounted(mountpoint, statx=True, declare=("lazy_atime",), **_TIMEOUTS) as m:
        m.model.create("f", b"old bytes")
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.fstat(fd).st_size == 9
        m.model.put("f", b"new")
        assert birth_stat(fd).st_size == 3
        assert os.pread(fd, 9, 0) == b"new"
        assert os.fstat(fd).st_size == 3
        os.close(fd)


def test_attributes_without_a_timeout_void_the_learned_ones(mountpoint: Path) -> None:
    with mounted(mountpoint, entry_timeout=0.0, attr_timeout=_LONG) as m:
        m.model.create("f", b"old bytes")
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.stat(m / "f").st_size == 9
        m.model.put("f", b"new")
        m.call("answer_with", attr_timeout=0.0)
        # The LOOKUP of the name brings attributes.
        assert os.stat(m / "f").st_size == 3
        os.close(fd)


def test_listing_is_not_learned_over_a_later_lookup_of_an_evicted_inode(mountpoint: Path) -> None:
    with mounted(mountpoint, declare=("stable_nodeids",), **_TIMEOUTS) as m:
        m.model.create("f", b"old bytes")
        m.hold("readdirplus", "after")
        with running(os.listdir, m.path) as listing:
            m.wait_held()
            m.model.put("f", b"new")
            assert os.stat(m / "f").st_size == 3
            m.evict()
            m.release()
            assert "f" in listing.result()
        assert os.stat(m / "f").st_size == 3


@pytest.mark.parametrize("mode", ["ttl", "cto"])
@pytest.mark.parametrize("how", ["lookup", "readdirplus"])
def test_reply_without_a_timeout_voids_the_learned_attributes_of_an_evicted_inode(
    mountpoint: Path, mode: str, how: str
) -> None:
    """The reply brings the inode back."""
    timeouts = _ONLY_ATTRIBUTES if how == "lookup" else _TIMEOUTS
    with mounted(mountpoint, consistency=mode, declare=("stable_nodeids",), **timeouts) as m:
        m.model.create("f", b"old bytes")
        assert os.stat(m / "f").st_size == 9
        m.evict()
        m.model.put("f", b"new")
        m.call("answer_with", attr_timeout=0.0)
        if how == "readdirplus":
            assert os.listdir(m.path) == ["f"]
        assert os.stat(m / "f").st_size == 3


@pytest.mark.parametrize("mode", ["ttl", "cto"])
def test_lookup_of_an_evicted_inode_is_learned_while_another_is_evicted(
    mountpoint: Path, mode: str
) -> None:
    with mounted(mountpoint, consistency=mode, declare=("stable_nodeids",), **_TIMEOUTS) as m:
        m.model.create("f", b"old bytes")
        m.model.hard_link("f", "g")
        m.model.create("other", b"")
        assert os.stat(m / "f").st_size == 9
        m.evict()
        os.stat(m / "other")
        m.model.put("f", b"new")
        m.hold("lookup", "after", b"g")
        with running(os.stat, m / "g") as call:
            m.wait_held()
            m.evict()
            m.release()
            assert call.result().st_size == 3
        hits = m.count("lookup", "hits")
        assert os.stat(m / "f").st_size == 3
        assert m.count("lookup", "hits") == hits + 1


@pytest.mark.parametrize("how", ["no timeout", "eviction"])
@pytest.mark.parametrize("write_back", [False, True], ids=["through", "back"])
def test_write_beyond_the_size_in_a_lookup_reply_reaches_the_daemon(
    mountpoint: Path, lower: Path, write_back: bool, how: str
) -> None:
    """With the old end, it would go into the extent of fixed length, and the file not grow."""
    path = backing(lower, _DATA)
    with mounted(
        mountpoint,
        declare=("stable_nodeids",),
        open_flags=FOPEN_NOFLUSH,
        generic_flags=FUSE_WRITEBACK_CACHE if write_back else 0,
        **_ONLY_ATTRIBUTES,
    ) as m:
        m.model.create("f", _DATA)
        m.model.create("other", b"")
        assert os.stat(m / "f").st_size == len(_DATA)
        m.evict()
        os.stat(m / "other")
        m.model.put("f", _LEFT)
        if how == "no timeout":
            m.call("answer_with", attr_timeout=0.0)
        m.hold("lookup", "after", b"f")
        with m.threads(1) as pool:
            call = pool.submit(os.open, m / "f", os.O_RDWR)
            m.wait_held()
            if how == "eviction":
                m.evict()
            m.release()
            fd = call.result()
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=len(_DATA), write=True)
        os.fstat(fd)
        assert os.pwrite(fd, b"w" * 100, 5 * BLOCK) == 100
        os.fsync(fd)
        os.close(fd)
        assert bytes(m.call("inode", "f").data[5 * BLOCK :]) == b"w" * 100


@pytest.mark.parametrize("mode", ["ttl", "cto"])
@pytest.mark.parametrize("name", ["f", "g"])
def test_stat_after_a_statx_that_crossed_an_answer_from_a_map_shows_nothing_older(
    mountpoint: Path, mode: str, name: str
) -> None:
    """FUSE takes the old answer, so it drops the newer reply of STATX."""
    declare = ("lazy_atime",)
    with mounted(mountpoint, consistency=mode, statx=True, declare=declare, **_TIMEOUTS) as m:
        m.model.create("f", b"old bytes")
        m.model.hard_link("f", "g")
        fd = os.open(m / "g", os.O_RDONLY)
        os.stat(m / "f")
        os.fstat(fd)
        m.drop()
        os.stat(m / "f")
        m.model.put("f", b"new")
        m.hold("statx", "after")
        with m.threads(1) as pool:
            call = pool.submit(birth_stat, fd)
            m.wait_held()
            opcode = "lookup" if name == "f" else "getattr"
            hits = m.count(opcode, "hits")
            if name == "f":
                m.drop()
                os.stat(m / "f")
            else:
                os.pread(fd, 9, 0)
                os.fstat(fd)
            assert m.count(opcode, "hits") == hits + 1
            m.release()
            assert call.result().st_size == 3
        assert os.fstat(fd).st_size == 3
        os.close(fd)


def _file_with_one_name_left(m: Mount, flags: int) -> int:
    """Open ``f``, which then is truncated by another name, and loses that name."""
    make(m, "f", _DATA)
    os.link(m / "f", m / "g")
    m.drop()
    fd = os.open(m / "f", os.O_RDWR | flags)
    os.fstat(fd)
    os.truncate(m / "g", len(_LEFT))
    os.unlink(m / "g")
    return fd


def test_fstat_after_a_statx_that_reports_one_name_shows_nothing_older(mountpoint: Path) -> None:
    with mounted(mountpoint, **_SEVERAL_NODEIDS) as m:
        fd = _file_with_one_name_left(m, 0)
        assert birth_stat(fd).st_size == len(_LEFT)
        os.pread(fd, 10, 0)
        assert os.fstat(fd).st_size == len(_LEFT)
        os.close(fd)


def test_fstat_after_one_that_crossed_an_unsupported_ioctl_shows_nothing_older(
    mountpoint: Path,
) -> None:
    """The ioctl(2) may have changed the file, so attributes that tell of one name are not learned.

    When it turns out to do nothing, what was learned before may not be valid again.
    """
    with mounted(mountpoint, ioctl=(errno.ENOTTY, 0), **_SEVERAL_NODEIDS) as m:
        fd = _file_with_one_name_left(m, 0)
        m.hold("ioctl", "after")
        with m.threads(1) as pool:
            call = pool.submit(fcntl.ioctl, fd, _GETFLAGS, bytearray(8))
            m.wait_held()
            os.pread(fd, 10, 0)  # makes FUSE ask for the access time
            assert os.fstat(fd).st_size == len(_LEFT)
            m.release()
            fails(errno.ENOTTY, call.result)
        os.pread(fd, 10, 0)
        assert os.fstat(fd).st_size == len(_LEFT)
        os.close(fd)


@pytest.mark.parametrize("crossed", [False, True])
def test_append_after_a_statx_goes_to_the_end_that_the_statx_reported(
    mountpoint: Path, crossed: bool
) -> None:
    """Crossed: an answer of a map comes while the STATX is in flight."""
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, **_SEVERAL_NODEIDS) as m:
        fd = _file_with_one_name_left(m, os.O_APPEND)
        m.hold("statx", "after")
        with m.threads(1) as pool:
            call = pool.submit(birth_stat, fd)
            m.wait_held()
            if crossed:
                os.pread(fd, 9, 0)
                os.fstat(fd)
            m.release()
            assert call.result().st_size == len(_LEFT)
        assert os.fstat(fd).st_size == len(_LEFT)
        assert os.write(fd, b"w" * 100) == 100
        assert bytes(m.call("inode", "f").data) == _LEFT + b"w" * 100
        os.close(fd)


def test_attributes_of_a_statx_are_learned(mountpoint: Path) -> None:
    with mounted(mountpoint, statx=True, declare=("lazy_atime",), **_TIMEOUTS) as m:
        m.model.create("f", b"bytes")
        fd = os.open(m / "f", os.O_RDONLY)
        m.call("inval_attributes", "f")
        assert birth_stat(fd).st_size == 5
        assert os.pread(fd, 9, 0) == b"bytes"
        m.log()
        hits = m.count("getattr", "hits")
        assert os.fstat(fd).st_size == 5
        assert m.count("getattr", "hits") == hits + 1
        assert m.asked() == []
        os.close(fd)


def test_equal_attributes_of_an_earlier_request_leave_the_learned_ones_valid(
    mountpoint: Path,
) -> None:
    with mounted(mountpoint, declare=("lazy_atime",), **_TIMEOUTS) as m:
        m.model.create("f", b"bytes")
        m.model.hard_link("f", "g")
        fd = os.open(m / "f", os.O_RDONLY)
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        with m.threads(1) as pool:
            call = pool.submit(os.fstat, fd)
            m.wait_held()
            assert os.stat(m / "g").st_size == 5
            m.release()
            assert call.result().st_size == 5
        m.drop()
        hits = m.count("lookup", "hits")
        assert os.stat(m / "g").st_size == 5
        assert m.count("lookup", "hits") == hits + 1
        os.close(fd)


def test_fstat_shows_the_attributes_that_the_daemon_reported_last(
    mountpoint: Path,
) -> None:
    with mounted(mountpoint, statx=True, **_TIMEOUTS) as m:
        m.model.create("f", b"old bytes")
        m.model.hard_link("f", "g")
        fd = os.open(m / "f", os.O_RDONLY)
        m.hold("statx", "before")
        with m.threads(1) as pool:
            call = pool.submit(birth_stat, fd)
            m.wait_held()
            assert os.stat(m / "g").st_size == 9
            m.model.put("f", b"new")
            m.release()
            assert call.result().st_size == 3
        assert os.fstat(fd).st_size == 3
        os.close(fd)


def test_write_beyond_the_size_that_the_daemon_reported_last_reaches_the_daemon(
    mountpoint: Path, lower: Path
) -> None:
    path = backing(lower, _DATA)
    with mounted(
        mountpoint, statx=True, declare=("lazy_atime",), open_flags=FOPEN_NOFLUSH, **_TIMEOUTS
    ) as m:
        m.model.create("f", _DATA)
        m.model.hard_link("f", "g")
        fd = os.open(m / "f", os.O_RDWR)
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=len(_DATA), write=True)
        m.hold("statx", "before")
        with m.threads(1) as pool:
            call = pool.submit(birth_stat, fd)
            m.wait_held()
            os.stat(m / "g")
            m.model.put("f", _LEFT)
            m.release()
            assert call.result().st_size == len(_LEFT)
        assert os.pwrite(fd, b"w" * 100, 5 * BLOCK) == 100
        os.fsync(fd)
        assert bytes(m.call("inode", "f").data[5 * BLOCK :]) == b"w" * 100
        os.close(fd)


def test_append_goes_to_the_end_that_the_daemon_reported_last(
    mountpoint: Path,
) -> None:
    """All changes come through the mount, by two nodeids of the file."""
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, **_SEVERAL_NODEIDS) as m:
        make(m, "f", _DATA)
        os.link(m / "f", m / "g")
        m.drop()
        fd = os.open(m / "f", os.O_RDWR | os.O_APPEND)
        os.stat(m / "g")
        m.call("inval_attributes", "f")
        m.hold("statx", "before")
        with m.threads(1) as pool:
            call = pool.submit(birth_stat, fd)
            m.wait_held()
            assert os.fstat(fd).st_size == len(_DATA)
            os.truncate(m / "g", len(_LEFT))
            m.release()
            assert call.result().st_size == len(_LEFT)
        assert os.fstat(fd).st_size == len(_LEFT)
        assert os.write(fd, b"w" * 100) == 100
        assert bytes(m.call("inode", "f").data) == _LEFT + b"w" * 100
        os.close(fd)


@pytest.fixture
def statx_without_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's replies to STATX lack an attribute. FUSE does not take such a reply."""
    whole = wire.statx_out

    def without_blocks(*args: Any) -> bytes:
        reply = bytearray(whole(*args))
        (mask,) = struct.unpack_from("=I", reply, 32)
        struct.pack_into("=I", reply, 32, mask & ~_STATX_BLOCKS)
        return bytes(reply)

    monkeypatch.setattr(scripted_daemon.wire, "statx_out", without_blocks)


@pytest.mark.usefixtures("statx_without_blocks")
def test_fstat_after_a_statx_without_all_attributes_shows_nothing_older(mountpoint: Path) -> None:
    with mounted(mountpoint, statx=True, declare=("lazy_atime",), **_TIMEOUTS) as m:
        m.model.create("f", b"old bytes")
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.fstat(fd).st_size == 9
        m.model.put("f", b"new")
        assert birth_stat(fd).st_size == 3
        assert os.fstat(fd).st_size == 3
        # FUSE's own stay if they are the same.
        asked = m.count("getattr", "daemon")
        assert birth_stat(fd).st_size == os.fstat(fd).st_size == 3
        assert m.count("getattr", "daemon") == asked
        os.close(fd)


@pytest.mark.parametrize("read", [False, True], ids=["", "after a read"])
def test_forced_stat_of_a_file_with_several_nodeids_shows_nothing_older(
    mountpoint: Path, read: bool
) -> None:
    with mounted(mountpoint, **_SEVERAL_NODEIDS) as m:
        m.model.create("f", b"old bytes")
        m.model.hard_link("f", "g")
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.fstat(fd).st_size == 9
        if read:  # FUSE has no valid atime then, and asks also when it is not forced to.
            os.pread(fd, 1, 0)
        os.truncate(m / "g", 3)
        assert force_stat(fd).st_size == 3
        assert os.fstat(fd).st_size == 3
        os.close(fd)


@pytest.mark.parametrize("attach", [True, False], ids=["eFuse", "plain"])
def test_attributes_with_the_flag_of_a_submount_end_those_that_were_learned(
    mountpoint: Path, attach: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FUSE ignores the flag, because the daemon has not negotiated submounts."""
    without = wire.attributes
    flagged = mmap.mmap(-1, mmap.PAGESIZE)  # the daemon is another process

    def with_flag(ino: int, size: int, *args: Any) -> bytes:
        raw = without(ino, size, *args)
        if size != len(b"new"):
            return raw
        flagged[0] = 1
        return raw[:-4] + struct.pack("=I", _FUSE_ATTR_SUBMOUNT)

    monkeypatch.setattr(wire, "attributes", with_flag)
    declare = ("stable_nodeids", "lazy_atime")
    with mounted(mountpoint, declare=declare, attach=attach, **_ONLY_ATTRIBUTES) as m:
        m.model.create("f", b"old bytes")
        assert os.stat(m / "f").st_size == 9
        m.evict()
        m.model.put("f", b"new")
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.fstat(fd).st_size == 3
        assert os.pread(fd, 9, 0) == b"new"
        assert os.fstat(fd).st_size == 3
        os.close(fd)
        assert flagged[0]


@pytest.mark.usefixtures("statx_without_blocks")
def test_read_after_a_statx_without_all_attributes_goes_to_the_daemon(mountpoint: Path) -> None:
    """The size is the same, so FUSE has no other reason to drop its pages."""
    options: dict[str, Any] = {"declare": ("lazy_atime",), "path": "daemon", **_TIMEOUTS}
    with mounted(mountpoint, statx=True, **options) as m:
        m.model.create("f", b"old bytes")
        fd = os.open(m / "f", os.O_RDONLY)
        before = os.fstat(fd)
        assert os.pread(fd, 9, 0) == b"old bytes"
        m.model.put("f", b"new bytes")
        assert birth_stat(fd).st_mtime_ns != before.st_mtime_ns
        assert os.pread(fd, 9, 0) == b"new bytes"
        os.close(fd)


@pytest.mark.usefixtures("statx_without_blocks")
def test_listing_is_not_learned_over_a_later_statx_without_all_attributes(mountpoint: Path) -> None:
    declare = ("stable_nodeids", "lazy_atime")
    with mounted(mountpoint, statx=True, declare=declare, **_TIMEOUTS) as m:
        m.model.create("f", b"old bytes")
        fd = os.open(m / "f", os.O_PATH)
        m.model.put("f", b"older")
        assert birth_stat(fd).st_size == 5
        os.close(fd)
        m.hold("readdirplus", "after")
        with running(os.listdir, m.path) as listing:
            m.wait_held()
            m.model.put("f", b"new")
            # The process that lists must not keep the inode.
            fd = os.open(m / "f", os.O_PATH)
            assert birth_stat(fd).st_size == 3
            os.close(fd)
            m.evict()
            m.release()
            assert listing.result() == ["f"]
        assert os.stat(m / "f").st_size == 3


@pytest.mark.usefixtures("reachable")
def test_chmod_by_another_nodeid_of_the_file_is_seen(mountpoint: Path) -> None:
    """FUSE asks once more before it refuses. The map would answer what it has of this nodeid."""
    with mounted(mountpoint, **_SEVERAL_NODEIDS) as m:
        m.model.create("f", b"bytes", stat.S_IFREG | 0o600)
        m.model.hard_link("f", "g")
        assert os.stat(m / "f").st_mode == os.stat(m / "g").st_mode
        os.chmod(m / "g", 0o644)
        assert as_user(1000, Path(m / "f").read_bytes) == b"bytes"


_OLD_LIST = encoded(6, 0, 0, mask=6, users={ALICE: 6})
_NEW_LIST = encoded(6, 0, 0, mask=6, users={BOB: 6})


def _open_in(directory: int) -> None:
    os.close(os.open("f", os.O_RDWR, dir_fd=directory))


def _cached_acl_is_void_after(
    mountpoint: Path,
    opcode: str,
    ask: Callable[[int], Statx],
    *,
    write_back: bool,
    link: bool = False,
) -> None:
    """Let a list be cached, and replaced at the daemon, while a request for attributes is held."""
    flags = wire.FUSE_POSIX_ACL | (FUSE_WRITEBACK_CACHE if write_back else 0)
    with (
        mounted(mountpoint, statx=True, generic_flags=flags, **_TIMEOUTS) as m,
        m.threads(1) as pool,
    ):
        m.model.create("f", b"bytes", mode=0o100660)
        m.model.set_xattr("f", os.fsencode(ACCESS), _OLD_LIST)
        fd, top = os.open(m / "f", os.O_RDWR), os.open(m.path, os.O_RDONLY)
        m.hold(opcode, "before")
        asking = pool.submit(ask, fd)
        m.wait_held()
        Call(_open_in, top, uid=ALICE, gid=ALICE).result()
        assert os.getxattr(fd, ACCESS) == _OLD_LIST
        m.model.set_xattr("f", os.fsencode(ACCESS), _NEW_LIST)
        if link:
            m.model.hard_link("f", "g")
        m.release()
        assert asking.result().st_nlink == 1 + link
        assert os.getxattr(fd, ACCESS) == _NEW_LIST
        with pytest.raises(PermissionError):
            Call(_open_in, top, uid=ALICE, gid=ALICE).result()
        os.close(fd)
        os.close(top)


@pytest.mark.parametrize("write_back", [False, True], ids=["", "write-back"])
@pytest.mark.parametrize("link", [False, True], ids=["", "another link"])
@pytest.mark.parametrize(
    ("opcode", "ask"), [("getattr", force_stat), ("statx", birth_stat)], ids=["getattr", "statx"]
)
def test_cached_acl_is_void_after_a_reply_that_fuse_drops(
    mountpoint: Path, opcode: str, ask: Callable[[int], Statx], link: bool, write_back: bool
) -> None:
    """The list was cached after the request was issued, and changed before it was answered."""
    _cached_acl_is_void_after(mountpoint, opcode, ask, write_back=write_back, link=link)


@pytest.mark.usefixtures("statx_without_blocks")
@pytest.mark.parametrize("write_back", [False, True], ids=["", "write-back"])
def test_cached_acl_is_void_after_a_statx_without_all_attributes(
    mountpoint: Path, write_back: bool
) -> None:
    _cached_acl_is_void_after(mountpoint, "statx", birth_stat, write_back=write_back)
