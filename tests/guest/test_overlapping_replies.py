# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that no older attributes follow those that were shown, however three requests overlap.

Another program has changed the file, so the kernel does not know of the change. ``attach=False``
is plain FUSE: the daemon never had a program set.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.access_lists import ACCESS, ALICE, BOB, encoded
from tests.guest.support.backing_files import backing
from tests.guest.support.daemons import (
    Call,
    Mount,
    birth_stat,
    fails,
    force_stat,
    mounted,
    running,
)
from tests.guest.support.file_data import BLOCK, fill, read_direct
from tests.guest.support.wire import FOPEN_NOFLUSH, FUSE_POSIX_ACL

_LONG = 600.0
_TIMEOUTS: dict[str, Any] = {"entry_timeout": _LONG, "attr_timeout": _LONG}
_LAZY: dict[str, Any] = {"declare": ("lazy_atime",), **_TIMEOUTS}
_STABLE: dict[str, Any] = {"declare": ("stable_nodeids", "lazy_atime"), **_TIMEOUTS}
_DATA = fill("d", 10 * BLOCK)
_LEFT = _DATA[: 2 * BLOCK]
_GETFLAGS = 0x80086601  # FS_IOC_GETFLAGS

attach_or_not = pytest.mark.parametrize("attach", [True, False], ids=["eFuse", "plain"])


def _answer_older_getattr_last(m: Mount, fd: int, between: str, left: bytes) -> None:
    """Let a STATX whose reply FUSE drops show *left*, and an older GETATTR be answered after it.

    :param between: how the LOOKUP that makes FUSE drop the STATX comes: ``learned`` or ``untimed``.
    """
    m.hold("statx", "before")
    with m.threads(2) as pool:
        first = pool.submit(birth_stat, fd)
        m.wait_held()
        if between == "untimed":
            m.call("answer_with", attr_timeout=0.0)
        os.stat(m / "g")
        m.call("answer_with", attr_timeout=_LONG)
        if between == "learned":
            m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        second = pool.submit(os.fstat, fd)
        m.wait_held(2)
        m.model.put("f", left)
        m.release("statx")
        assert first.result().st_size == len(left)
        m.release()
        second.result()


def _write_reaches_the_daemon(m: Mount, fd: int) -> None:
    """Write behind the end that was shown last, which the daemon must notice; close the file."""
    assert os.pwrite(fd, b"w" * 100, 5 * BLOCK) == 100
    os.fsync(fd)
    assert bytes(m.call("inode", "f").data[5 * BLOCK :]) == b"w" * 100
    os.close(fd)


@pytest.mark.parametrize("between", ["learned", "untimed"])
def test_fstat_after_a_dropped_statx_shows_nothing_older(mountpoint: Path, between: str) -> None:
    with mounted(mountpoint, statx=True, **_LAZY) as m:
        m.model.create("f", b"old bytes")
        m.model.hard_link("f", "g")
        fd = os.open(m / "f", os.O_RDONLY)
        _answer_older_getattr_last(m, fd, between, b"new")
        assert os.fstat(fd).st_size == 3
        os.close(fd)


@pytest.mark.parametrize("between", ["learned", "untimed"])
@pytest.mark.parametrize("mode", ["ttl", "cto"])
def test_write_beyond_the_size_in_a_dropped_statx_reaches_the_daemon(
    mountpoint: Path, lower: Path, mode: str, between: str
) -> None:
    """With the old end, it would go into the extent of fixed length, and the file not grow."""
    path = backing(lower, _DATA)
    options = {"consistency": mode, "statx": True, "open_flags": FOPEN_NOFLUSH, **_LAZY}
    with mounted(mountpoint, **options) as m:
        m.model.create("f", _DATA)
        m.model.hard_link("f", "g")
        fd = os.open(m / "f", os.O_RDWR)
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=len(_DATA), write=True)
        _answer_older_getattr_last(m, fd, between, _LEFT)
        _write_reaches_the_daemon(m, fd)


def test_fstat_after_a_truncation_shows_nothing_older_than_an_fstat_during_it(
    mountpoint: Path,
) -> None:
    """FUSE drops what comes during the truncation, and its caller sees it."""
    with mounted(mountpoint, **_LAZY) as m:
        m.model.create("f", b"old bytes")
        fd = os.open(m / "f", os.O_RDWR)
        m.call("inval_attributes", "f")
        m.hold("setattr", "after")
        with running(os.ftruncate, fd, 5) as call:
            m.wait_held()
            m.model.put("f", b"new")
            assert os.fstat(fd).st_size == 3
            m.release()
            call.result()
        assert os.fstat(fd).st_size == 3
        os.close(fd)


def _bucket_of_attributes(nodeid: int) -> int:
    """Return ``efuse_bucket_inode(nodeid, EFUSE_KIND_ATTR)``."""
    return nodeid * 16 * 0x61C8864680B583EB % (1 << 64) >> 48


def test_listing_is_not_learned_over_a_later_lookup_that_was_not_learned(
    mountpoint: Path,
) -> None:
    """Both files have the same bucket. The ioctl(2) of the other is in flight, and ends unknown."""
    with mounted(mountpoint, ioctl=(errno.ENOTTY, 0), **_STABLE) as m:
        bucket = _bucket_of_attributes(m.model.create("f", b"old bytes"))
        other = next(n for n in range(3, 1 << 20) if _bucket_of_attributes(n) == bucket)
        m.model.mkdir("d")
        m.call("model.__setattr__", "_last", other - 1)
        assert m.model.create("d/z", b"") == other
        fd = os.open(m / "d/z", os.O_RDONLY)
        m.hold("readdirplus", "after")
        with running(os.listdir, m.path) as listing:
            m.wait_held()
            m.model.put("f", b"new")
            m.hold("ioctl", "after")
            with running(fails, errno.ENOTTY, fcntl.ioctl, fd, _GETFLAGS, bytearray(8)) as call:
                m.wait_held(2)
                assert os.stat(m / "f").st_size == 3
                m.release("ioctl")
                call.result()
            m.evict()
            m.release()
            assert "f" in listing.result()
        assert os.stat(m / "f").st_size == 3
        os.close(fd)


def test_block_of_a_read_issued_before_the_first_attach_is_not_cached(mountpoint: Path) -> None:
    old, new = _DATA[:BLOCK], _DATA[BLOCK : 2 * BLOCK]
    with mounted(mountpoint, attach=False, path="cache", **_LAZY) as m:
        m.model.create("f", old)
        m.hold("read", "after")
        # Blocks of direct I/O are never learned from its own memory.
        with running(Path(m / "f").read_bytes) as call:
            m.wait_held()
            m.model.put("f", new)
            m.attach()
            m.release()
            assert call.result() == old
        assert read_direct(m / "f", BLOCK) == new
        # What comes later is learned.
        with m.answered("read"):
            assert read_direct(m / "f", BLOCK) == new


def _listing_crosses_the_first_attach(m: Mount, left: bytes) -> None:
    """What the stat(2) has shown was noted nowhere: there was no program yet."""
    m.hold("readdirplus", "after")
    with running(os.listdir, m.path) as listing:
        m.wait_held()
        m.model.put("f", left)
        assert os.stat(m / "f").st_size == len(left)
        m.evict()
        m.attach()
        m.release()
        assert "f" in listing.result()


def test_listing_issued_before_the_first_attach_is_not_learned(mountpoint: Path) -> None:
    with mounted(mountpoint, attach=False, **_STABLE) as m:
        m.model.create("f", b"old bytes")
        _listing_crosses_the_first_attach(m, b"new")
        assert os.stat(m / "f").st_size == 3
        # What comes later is learned.
        os.listdir(m.path)
        m.evict()
        hits = m.count("lookup", "hits")
        assert os.stat(m / "f").st_size == 3
        assert m.count("lookup", "hits") == hits + 1


def test_write_after_a_listing_issued_before_the_first_attach_reaches_the_daemon(
    mountpoint: Path, lower: Path
) -> None:
    path = backing(lower, _DATA)
    with mounted(mountpoint, attach=False, open_flags=FOPEN_NOFLUSH, **_STABLE) as m:
        m.model.create("f", _DATA)
        _listing_crosses_the_first_attach(m, _LEFT)
        fd = os.open(m / "f", os.O_RDWR)
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=len(_DATA), write=True)
        _write_reaches_the_daemon(m, fd)


@attach_or_not
def test_read_sees_that_the_file_has_grown_while_statx_calls_overlap(
    mountpoint: Path, attach: bool
) -> None:
    """FUSE drops every other reply. The file grows once, and rests."""
    options = {"declare": ("lazy_atime",), "entry_timeout": _LONG, "attr_timeout": 0.0}
    with mounted(mountpoint, statx=True, attach=attach, **options) as m:
        m.model.create("f", b"old")
        fd = os.open(m / "f", os.O_RDONLY)
        with m.threads(2) as pool:
            m.hold("getattr", "after")
            read = pool.submit(os.pread, fd, 100, 0)
            m.wait_held()
            m.model.put("f", b"new bytes")
            m.hold("statx", "after")
            statx = pool.submit(birth_stat, fd)
            m.wait_held(2)
            for _ in range(3):
                m.release("getattr")
                read.result()
                m.hold("getattr", "after")
                read = pool.submit(os.pread, fd, 100, 0)
                m.wait_held(2)
                m.release("statx")
                assert statx.result().st_size == 9
                m.hold("statx", "after")
                statx = pool.submit(birth_stat, fd)
                m.wait_held(2)
            m.release("getattr")
            assert read.result() == b"new bytes"
            m.release()
            assert statx.result().st_size == 9
        os.close(fd)


@attach_or_not
@pytest.mark.parametrize("opcode", ["lookup", "getattr"])
def test_sendfile_after_a_statx_that_crossed_equal_attributes_goes_to_the_end(
    mountpoint: Path, tmp_path: Path, attach: bool, opcode: str
) -> None:
    """sendfile(2) goes by the size that FUSE has. An answer of a map that FUSE has is no news."""
    with mounted(mountpoint, statx=True, attach=attach, **_LAZY) as m, m.threads(1) as pool:
        m.model.create("f", _LEFT)
        m.model.hard_link("f", "g")
        os.stat(m / "g")
        fd = os.open(m / "f", os.O_RDONLY)
        os.fstat(fd)
        m.model.put("f", _DATA)
        m.hold("statx", "after")
        call = pool.submit(birth_stat, fd)
        m.wait_held()
        hits = m.count(opcode, "hits")
        if opcode == "lookup":
            m.drop()
            os.stat(m / "g")
        else:
            os.pread(fd, 9, 0)
            os.fstat(fd)
        assert m.count(opcode, "hits") == hits + attach
        m.release()
        assert call.result().st_size == len(_DATA)
        with (tmp_path / "copy").open("wb") as copy:
            while os.sendfile(copy.fileno(), fd, None, len(_DATA)):
                pass
        assert (tmp_path / "copy").read_bytes() == _DATA
        os.close(fd)


@contextlib.contextmanager
def _statx_is_dropped(m: Mount, fd: int) -> Iterator[None]:
    """Let a forced GETATTR cross a STATX, which is answered after the block, and shown."""
    with m.threads(1) as pool:
        before = os.fstat(fd)
        m.hold("statx", "before")
        call = pool.submit(birth_stat, fd)
        m.wait_held()
        force_stat(fd)
        yield
        m.release()
        shown = call.result()
        assert shown.st_size == before.st_size
        assert shown.st_ctime_ns != before.st_ctime_ns


def test_read_after_a_dropped_statx_has_shown_another_mtime_goes_to_the_daemon(
    mountpoint: Path,
) -> None:
    """The size is the same, so FUSE has no other reason to drop its pages."""
    with mounted(mountpoint, statx=True, path="daemon", **_LAZY) as m:
        m.model.create("f", b"old bytes")
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.pread(fd, 9, 0) == b"old bytes"
        with _statx_is_dropped(m, fd):
            m.model.put("f", b"new bytes")
        assert os.pread(fd, 9, 0) == b"new bytes"
        os.close(fd)


def _opened_by_alice(top: int) -> int:
    try:
        os.close(os.open("f", os.O_RDWR, dir_fd=top))
    except OSError as error:
        return error.errno
    return 0


def test_cached_acl_is_void_after_a_dropped_statx_has_shown_another_ctime(mountpoint: Path) -> None:
    """The mask of the list, and so the mode, is the same."""
    name = os.fsencode(ACCESS)
    with mounted(mountpoint, statx=True, generic_flags=FUSE_POSIX_ACL, **_LAZY) as m:
        m.model.create("f", b"bytes", mode=0o100660)
        m.model.set_xattr("f", name, encoded(6, 0, 0, mask=6, users={ALICE: 6}))
        fd, top = os.open(m / "f", os.O_RDWR), os.open(mountpoint, os.O_RDONLY)
        with _statx_is_dropped(m, fd):
            assert Call(_opened_by_alice, top, uid=ALICE, gid=ALICE).result() == 0
            m.model.set_xattr("f", name, encoded(6, 0, 0, mask=6, users={BOB: 6}))
        assert Call(_opened_by_alice, top, uid=ALICE, gid=ALICE).result() == errno.EACCES
        os.close(fd)
        os.close(top)
