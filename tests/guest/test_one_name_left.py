# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test a file that has lost all names but one, after it was changed by another of its nodeids.

In exclusive mode what the kernel knows of a file with several nodeids has the daemon's timeout.
When the file has one name again, that may not become true again.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse.fs import extents
from tests.guest.support.asynchronous import ASYNC_DIO, PWRITE, Block, Opening, Queue
from tests.guest.support.backing_files import backing, make
from tests.guest.support.daemons import Mount, as_user, fails, force_stat, mounted
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.wire import FOPEN_NOFLUSH

_LENGTH = 10 * BLOCK
_LEFT = fill("d", 50)
_NOBODY = 65534
_NO_TIMEOUT = {"entry_timeout": 0.0, "attr_timeout": 0.0}
_TIMEOUTS = pytest.mark.parametrize("timeouts", [LONG, _NO_TIMEOUT], ids=["long", "none"])


@contextlib.contextmanager
def _linked(
    mountpoint: Path, lower: Path, length: int = _LENGTH, **options: Any
) -> Iterator[tuple[Mount, int]]:
    """Mount a file with the names ``f`` and ``h``, which have a nodeid each; ``f`` is mapped."""
    path = backing(lower, fill("d", _LENGTH))
    with mounted(
        mountpoint,
        consistency="exclusive",
        nodeid_per_name=True,
        open_flags=FOPEN_NOFLUSH,
        **options,
    ) as m:
        make(m, "f", fill("d", _LENGTH))
        os.link(m / "f", m / "h")
        nodeid = m.call("nodeids.grant", 2, (1, b"f"))[0]
        m.call("nodeids.forget", nodeid, 1)
        device, backing_fd = m.device(), os.open(path, os.O_RDWR)
        extents.map_extent(
            device,
            extents.Extent(nodeid, backing_fd, offset=0, length=length, write=True),
        )
        os.close(device)
        os.close(backing_fd)
        fd = os.open(m / "f", os.O_RDWR)
        assert os.fstat(fd).st_nlink == 2
        yield m, fd
        os.close(fd)


def _open(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


def _cut_by_other_name(m: Mount) -> None:
    os.truncate(m / "h", len(_LEFT))
    os.unlink(m / "h")


def _listed(m: Mount) -> None:
    """Let READDIRPLUS bring the attributes."""
    m.log()
    assert sorted(os.listdir(m.path)) == ["f"]
    assert "readdirplus" in m.asked()


def _size_in_model(m: Mount) -> int:
    return len(m.call("inode", "f").data)


@_TIMEOUTS
@pytest.mark.parametrize("how", ["read", "write"])
def test_size_known_before_a_listing_reports_one_name_is_not_used(
    mountpoint: Path, lower: Path, timeouts: dict[str, float], how: str
) -> None:
    with _linked(mountpoint, lower, **timeouts) as (m, fd):
        _cut_by_other_name(m)
        _listed(m)
        if how == "read":
            assert os.pread(fd, BLOCK, 0) == _LEFT
            return
        assert os.pwrite(fd, b"w" * 100, 5 * BLOCK) == 100
        assert _size_in_model(m) == 5 * BLOCK + 100


@pytest.mark.parametrize("how", ["read", "write"])
def test_size_known_before_attributes_that_cross_a_write_is_not_used(
    mountpoint: Path, lower: Path, how: str
) -> None:
    """The WRITE is one of the last block, which no extent covers."""
    options = {"generic_flags": ASYNC_DIO, **LONG}
    with _linked(mountpoint, lower, _LENGTH - BLOCK, **options) as (m, fd):
        direct = os.open(m / "f", os.O_RDWR | os.O_DIRECT)
        os.fstat(fd)
        block, writes = Block(b"x" * BLOCK), Queue()
        m.hold("write", "before")
        writes.submit(PWRITE, direct, block.address, BLOCK, 9 * BLOCK)
        m.wait_held()
        _cut_by_other_name(m)
        seen = force_stat(m / "f")
        assert (seen.st_nlink, seen.st_size) == (1, len(_LEFT))
        if how == "read":
            data = os.pread(fd, BLOCK, 0)
        else:
            assert os.pwrite(fd, b"w" * 100, 5 * BLOCK) == 100
            data = bytes(m.call("inode", "f").data)
        m.release()
        assert writes.results(1) == [BLOCK]
        writes.close()
        os.close(direct)
        assert data == (_LEFT if how == "read" else _LEFT.ljust(5 * BLOCK, b"\0") + b"w" * 100)


def test_old_reply_of_a_create_does_not_tell_that_a_file_has_one_name(mountpoint: Path) -> None:
    """FUSE takes the attributes in it, although the file has got another name since."""
    with mounted(
        mountpoint,
        consistency="exclusive",
        default_permissions=False,  # open(2) asks for no attributes, which would be newer
        open_flags=FOPEN_NOFLUSH,
        **_NO_TIMEOUT,
    ) as m:
        m.model.create("f", b"data")
        fd = os.open(m / "f", os.O_RDONLY)
        m.hold("lookup", "after", b"g")
        m.hold("create", "after", b"g")
        opening = Opening(m / "g", os.O_WRONLY | os.O_CREAT)
        m.wait_held()  # the name does not exist
        m.model.move("f", "g")
        m.release("lookup")
        m.wait_held()  # the reply of the CREATE has a link count of 1
        m.model.hard_link("g", "h")
        m.call("inval_attributes", "g")
        assert os.fstat(fd).st_nlink == 2
        m.release()
        created = opening.result()
        # The other name may have another nodeid, by which this changes.
        for value in (b"old", b"new"):
            m.model.set_xattr("g", b"user.x", value)
            assert os.getxattr(fd, "user.x") == value
        os.close(created)
        os.close(fd)


def test_write_beyond_eof_voids_the_last_cached_block_of_a_file_with_one_name_left(
    mountpoint: Path,
) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        nodeid_per_name=True,
        open_flags=FOPEN_NOFLUSH,
        path="cache",
        **LONG,
    ) as m:
        make(m, "f", fill("d", _LENGTH))
        os.link(m / "f", m / "h")
        fd = os.open(m / "f", os.O_RDWR)
        assert os.fstat(fd).st_nlink == 2
        _cut_by_other_name(m)
        _listed(m)
        assert os.pread(fd, BLOCK, 0) == _LEFT
        assert os.pwrite(fd, b"w" * 100, 5 * BLOCK) == 100
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        data = _LEFT.ljust(5 * BLOCK, b"\0") + b"w" * 100
        assert bytes(m.call("inode", "f").data) == data
        seen = os.pread(fd, _LENGTH, 0)
        again = os.pread(fd, _LENGTH, 0)
        size = os.fstat(fd).st_size
        os.close(fd)
        assert (len(seen), len(again), size) == (len(data),) * 3
        assert seen == again == data


def test_cached_blocks_are_void_when_a_file_has_one_name_left(mountpoint: Path) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        nodeid_per_name=True,
        open_flags=FOPEN_NOFLUSH,
        path="cache",
        **_NO_TIMEOUT,
    ) as m:
        make(m, "f", b"o" * BLOCK)
        os.link(m / "f", m / "h")
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.fstat(fd).st_nlink == 2
        assert os.pread(fd, BLOCK, 0) == b"o" * BLOCK
        other = os.open(m / "h", os.O_WRONLY)
        assert os.pwrite(other, b"n" * BLOCK, 0) == BLOCK
        os.close(other)
        os.unlink(m / "h")
        assert os.stat(m / "f").st_nlink == 1
        assert bytes(m.call("inode", "f").data) == b"n" * BLOCK
        assert os.pread(fd, BLOCK, 0) == b"n" * BLOCK
        os.close(fd)


@pytest.mark.usefixtures("reachable")
def test_xattrs_and_grants_are_void_when_a_file_has_one_name_left(mountpoint: Path) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("no_open", "no_flush"),
        default_permissions=False,
        nodeid_per_name=True,
        check_modes=True,
        **_NO_TIMEOUT,
    ) as m:
        m.model.create("f", b"data")
        m.model.set_xattr("f", b"user.x", b"old")
        os.stat(m / "f")
        os.link(m / "f", m / "h")
        assert os.stat(m / "f").st_nlink == 2
        assert os.getxattr(m / "f", "user.x") == b"old"
        as_user(_NOBODY, _open, m / "f")
        os.setxattr(m / "h", "user.x", b"new")
        os.chmod(m / "h", 0o600)
        os.unlink(m / "h")
        assert os.stat(m / "f").st_nlink == 1
        assert os.getxattr(m / "f", "user.x") == b"new"
        fails(errno.EACCES, as_user, _NOBODY, _open, m / "f")


@pytest.mark.parametrize("what", ["xattr", "data"])
def test_link_made_while_handlers_are_detached_is_known_after_they_are_attached_again(
    mountpoint: Path, what: str
) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        default_permissions=False,
        nodeid_per_name=True,
        open_flags=FOPEN_NOFLUSH,
        path="cache",
        **_NO_TIMEOUT,
    ) as m:
        m.model.create("f", b"o" * BLOCK)
        m.model.set_xattr("f", b"user.x", b"old")
        fd = os.open(m / "f", os.O_RDONLY)
        direct = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        assert os.fstat(fd).st_nlink == 1
        assert m.attachment
        m.attachment.close()
        os.link(m / "f", m / "h")
        m.attach()
        if what == "xattr":
            assert os.getxattr(fd, "user.x") == b"old"
            os.setxattr(m / "h", "user.x", b"new")
            seen = os.getxattr(fd, "user.x")
            assert m.call("inode", "f").xattrs[b"user.x"] == b"new"
            expected = b"new"
        else:
            expected = b"n" * BLOCK
            with mmap.mmap(-1, BLOCK) as buffer:
                assert os.preadv(direct, [buffer], 0) == BLOCK
                assert buffer[:] == b"o" * BLOCK
                other = os.open(m / "h", os.O_WRONLY)
                assert os.pwrite(other, expected, 0) == BLOCK
                os.close(other)
                assert os.preadv(direct, [buffer], 0) == BLOCK
                seen = buffer[:]
        os.close(direct)
        os.close(fd)
        assert seen == expected


@pytest.mark.parametrize("what", ["attributes", "xattr", "data"])
def test_file_whose_names_are_not_counted_is_seen_to_change_by_another_name(
    mountpoint: Path, what: str
) -> None:
    """The daemon reports an nlink of 0 for all files, as some daemons of archives do."""
    with mounted(
        mountpoint,
        consistency="exclusive",
        nodeid_per_name=True,
        counts_names=False,
        open_flags=FOPEN_NOFLUSH,
        path="cache",
        **_NO_TIMEOUT,
    ) as m:
        m.model.create("f", b"o" * BLOCK)
        m.model.hard_link("f", "h")
        m.model.set_xattr("f", b"user.x", b"old")
        fd, other = os.open(m / "f", os.O_RDONLY), os.open(m / "h", os.O_RDWR)
        assert os.fstat(fd).st_nlink == 0
        assert os.pread(fd, 2 * BLOCK, 0) == b"o" * BLOCK
        assert os.getxattr(fd, "user.x") == b"old"
        if what == "attributes":
            os.fchmod(other, 0o600)
            assert os.fstat(fd).st_mode & 0o777 == 0o600
        elif what == "xattr":
            os.setxattr(other, "user.x", b"new")
            assert os.getxattr(fd, "user.x") == b"new"
        else:
            assert os.pwrite(other, b"n" * 2 * BLOCK, 0) == 2 * BLOCK
            assert os.pread(fd, 3 * BLOCK, 0) == b"n" * 2 * BLOCK
        os.close(other)
        os.close(fd)
