# SPDX-License-Identifier: LGPL-2.1-or-later
"""Successors that number inodes and open files for themselves, at awkward moments."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guest.support import wire
from tests.guest.support.daemons import eventually, fails, force_stat, running
from tests.guest.support.model_file_system import RENAME_EXCHANGE, ROOT
from tests.guest.support.succession import RECOVERY_S, Renumbering, renumbering

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def opened(path: str, flags: int = os.O_RDWR) -> Iterator[int]:
    """Open a file. Its close may fail, since its daemon may be gone."""
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


def read(path: str) -> bytes:
    return Path(path).read_bytes()


@contextlib.contextmanager
def dirty(fd: int) -> Iterator[None]:
    """Make the first page of a file dirty. At the end of its map, the page is written back."""
    with mmap.mmap(fd, mmap.PAGESIZE) as pages:
        pages[:4] = b"data"
        yield


# The end of the connection


def test_write_back_that_was_lost_ends_with_the_mount(mountpoint: Path) -> None:
    with renumbering(mountpoint) as m:
        m.model.create("file", bytes(mmap.PAGESIZE))
        m.hold("write", "before")
        with opened(m / "file") as fd, dirty(fd), running(os.fsync, fd) as call:
            m.wait_held()
            m.dies()
            m.connection.recovery = 0
            with pytest.raises(OSError):
                call.result()
        eventually(lambda: not m.connection.waiting, "the requests to end")


def test_write_back_that_a_successor_has_not_got_ends_with_the_mount(mountpoint: Path) -> None:
    with renumbering(mountpoint, consistency="exclusive") as m:
        for name in ("one", "two"):
            m.model.create(name, bytes(mmap.PAGESIZE))
        with opened(m / "one") as one, opened(m / "two") as two, dirty(one), dirty(two):
            state = m.dies()
            # Write-back begins, and no task waits for it.
            for fd in (one, two):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            m.follow(state, ("lookup", "before"))
            m.wait_held()
            # Another request has found the second file meanwhile, so its write-back could be sent.
            assert os.lseek(two, 0, os.SEEK_DATA) == 0
            m.connection.abort()
            eventually(lambda: not m.connection.waiting, "the requests to end")


# Identity


def test_directory_without_a_name_is_not_found(mountpoint: Path) -> None:
    with renumbering(mountpoint) as m:
        os.mkdir(m / "directory")
        with opened(m / "directory", os.O_RDONLY) as fd:
            os.rmdir(m / "directory")
            m.replace()
            with running(force_stat, fd) as call:
                fails(errno.ESTALE, call.result)


def test_directory_whose_name_was_invalidated_is_found_again(mountpoint: Path) -> None:
    with renumbering(mountpoint) as m:
        m.model.mkdir("pad")
        m.model.mkdir("directory")
        m.model.create("directory/file", b"data")
        with opened(m / "directory", os.O_RDONLY) as fd:
            m.call("inval_entry", "", b"directory")
            m.replace()
            with running(os.listdir, fd) as call:
                assert call.result() == ["file"]


def test_open_file_whose_name_was_invalidated_is_found_again(mountpoint: Path) -> None:
    with renumbering(mountpoint) as m:
        m.model.create("pad")
        m.model.create("file", b"data")
        with opened(m / "file") as fd:
            m.call("inval_entry", "", b"file")
            m.replace()
            assert os.pread(fd, 9, 0) == b"data"
            assert os.pwrite(fd, b"new", 4) == 3
            with opened(m / "file") as other:
                assert os.pread(other, 9, 0) == b"datanew"
                assert os.path.samestat(os.fstat(fd), os.fstat(other))


def test_open_file_whose_invalidated_name_has_another_file_is_not_found(
    mountpoint: Path,
) -> None:
    with renumbering(mountpoint) as m:
        m.model.create("pad")
        m.model.create("file", b"data")
        with opened(m / "file") as fd:
            m.call("inval_entry", "", b"file")
            state = m.dies()
            state.model.unlink(ROOT, b"file")
            state.model.create("file", b"other")
            m.follow(state)
            fails(errno.ESTALE, force_stat, fd)
        assert read(m / "file") == b"other"


def test_nodeid_of_a_reply_to_readdirplus_is_not_another_inode_of_the_successor(
    mountpoint: Path,
) -> None:
    with renumbering(mountpoint, entry_timeout=3600.0) as m:
        for number in range(8):
            m.model.create(f"pad{number}")
        m.model.mkdir("d")
        for name in ("d/one", "d/two", "x", "y"):
            m.model.create(name, name.encode())
        m.hold("lookup", "before", b"one")
        with running(os.stat, m / "d/one") as first:
            m.wait_held()
            # The first entry waits for that LOOKUP, and the second one has a nodeid already.
            with running(os.listdir, m / "d") as lists:
                eventually(lambda: lists.sleeps_in("d_alloc_parallel"), "the listing to wait")
                m.follow(m.dies(), ("lookup", "before"))
                m.wait_held()
                # Names in the order of the first daemon: d, one, two.
                m.call("release_and_hold", "lookup", "before")
                m.wait_held()
                with opened(m / "x") as x, opened(m / "y") as y:
                    assert [os.read(x, 9), os.read(y, 9)] == [b"x", b"y"]
                    m.release()
                    first.result()
                    assert sorted(lists.result()) == ["one", "two"]
                    assert read(m / "d/two") == b"d/two"
                    assert os.pread(y, 9, 0) == b"y"


class _Handle(ctypes.Structure):
    """struct file_handle of name_to_handle_at(2)."""

    _fields_ = (
        ("bytes", ctypes.c_uint),
        ("type", ctypes.c_int),
        ("data", ctypes.c_ubyte * 128),
    )


def handle_of(path: str) -> _Handle:
    handle, mount_id = _Handle(bytes=128), ctypes.c_int()
    failed = _libc.name_to_handle_at(
        -100, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount_id), 0
    )
    assert not failed, os.strerror(ctypes.get_errno())
    return handle


def open_handle(mount: int, handle: _Handle) -> bytes:
    """Open a file by its handle; return what it has."""
    fd = _libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_file_handle_is_not_another_inode_of_the_successor(mountpoint: Path) -> None:
    with renumbering(mountpoint) as m:
        for name in ("pad", "old", "new"):
            m.model.create(name, name.encode())
        old = handle_of(m / "old")
        m.evict()
        m.replace()
        with opened(m / "new") as new, opened(str(mountpoint), os.O_RDONLY) as root:
            fails(errno.ESTALE, open_handle, root, old)
            assert os.read(new, 9) == b"new"


def test_file_whose_inode_number_is_its_nodeid_by_accident_is_found_again(
    mountpoint: Path,
) -> None:
    with renumbering(mountpoint) as m, contextlib.ExitStack() as stack:
        files = []
        for number in range(4):
            name = f"file{number}"
            ino = m.model.create(name, name.encode())
            files.append(stack.enter_context(opened(m / name)))
            assert m.call("nodeid", name) == ino
        before = [os.fstat(fd).st_ino for fd in files]
        # The successor numbers them in another order.
        m.replace()
        for number, fd in reversed([*enumerate(files)]):
            assert os.pread(fd, 100, 0) == b"file%d" % number
        assert [force_stat(fd).st_ino for fd in files] == before


def test_inode_number_that_is_a_nodeid_by_accident_stays(mountpoint: Path) -> None:
    with renumbering(mountpoint) as m, contextlib.ExitStack() as stack:
        for number in range(6):
            m.model.create(f"file{number}")
        files = [stack.enter_context(opened(m / f"file{number}")) for number in (5, 4, 3, 2, 1, 0)]
        before = [os.fstat(fd).st_ino for fd in files]
        m.replace()
        for number in range(6):
            os.stat(m / f"file{number}")
        assert [force_stat(fd).st_ino for fd in files] == before


# Names that another client changes


def test_rename_that_was_carried_out_is_not_repeated_over_another_file(mountpoint: Path) -> None:
    with renumbering(mountpoint) as m:
        m.model.create("pad")
        m.model.create("a", b"a")
        m.hold("rename", "after")
        with running(os.rename, m / "a", m / "b") as call:
            m.wait_held()
            state = m.dies()
            state.model.create("a", b"of another client")
            m.follow(state)
            fails(errno.EIO, call.result)
        assert read(m / "b") == b"a"
        assert read(m / "a") == b"of another client"


def exchange(one: str, two: str) -> None:
    if _libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(two), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2")


def test_open_file_is_not_the_one_that_it_was_perhaps_exchanged_with(mountpoint: Path) -> None:
    with renumbering(mountpoint, consistency="exclusive", numbers_inodes=True) as m:
        for name in ("a", "b"):
            m.model.create(name, name.encode())
        with opened(m / "a") as fd:
            m.hold("rename2", "after")
            with running(exchange, m / "a", m / "b") as call:
                m.wait_held()
                m.replace()
                fails(errno.EIO, call.result)
            with pytest.raises(OSError):
                os.pread(fd, 9, 0)
        assert [read(m / "a"), read(m / "b")] == [b"b", b"a"]


# Open files


def test_handle_from_before_recovery_is_not_sent_to_a_successor(mountpoint: Path) -> None:
    with renumbering(mountpoint, recovery=False, first_handle=2) as m:
        m.model.create("file", b"data")
        with opened(m / "file") as fd:
            assert m.call("nodeid", "file") == 2
            m.connection.recovery = RECOVERY_S
            m.replace()
            fails(errno.EIO, os.pread, fd, 4, 0)


class _Asked:
    """The opcodes that a mount's daemon has been sent."""

    def __init__(self, m: Renumbering) -> None:
        self._mount = m
        self.opcodes: list[str] = []

    def has(self, opcode: str) -> bool:
        self.opcodes += self._mount.asked()
        return opcode in self.opcodes


def test_lock_ends_with_another_open_file_of_its_owner(mountpoint: Path) -> None:
    with renumbering(mountpoint, locks=True) as m:
        m.model.create("file", b"data")
        with opened(m / "file") as one:
            two = os.open(m / "file", os.O_RDWR)
            fcntl.lockf(one, fcntl.LOCK_EX)
            m.replace()
            before = _Asked(m)
            eventually(lambda: before.has("setlk"), "the successor to have the lock")
            os.close(two)
            assert before.has("flush")
            m.replace()
            # Before this SETLKW, the successor is told of the locks that there are.
            fcntl.lockf(one, fcntl.LOCK_SH)
            asked = m.asked()
            assert (asked.count("setlkw"), asked.count("setlk")) == (1, 0)


def lock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX)


@pytest.mark.parametrize("attempt", range(4))
def test_file_is_closed_while_a_successor_is_told_of_its_lock(
    mountpoint: Path, attempt: int
) -> None:
    """The caller that waits for a lock tells the successor of others, or a worker does."""
    with renumbering(mountpoint, generic_flags=wire.FUSE_FLOCK_LOCKS) as m:
        m.model.create("file", b"data")
        m.model.create("other", b"data")
        held = os.open(m / "file", os.O_RDWR)
        with opened(m / "other") as other:
            lock(held)
            state = m.dies()
            with running(lock, other) as call:
                eventually(lambda: m.connection.waiting >= 1, "the caller to wait")
                m.follow(state, ("open", "before"))
                m.wait_held()
                os.close(held)
                m.release()
                call.result()
        eventually(lambda: not m.call("handles"), "the successor's files to be closed")
        assert not m.call("faults")


# Listings


def getdents(fd: int, size: int) -> list[str]:
    """Call getdents64(2) with a buffer of *size* bytes."""
    buffer = ctypes.create_string_buffer(size)
    got = _libc.syscall(217, fd, buffer, size)
    if got < 0:
        raise OSError(ctypes.get_errno(), "getdents64")
    names, at = [], 0
    while at < got:
        (length,) = struct.unpack_from("=H", buffer, at + 16)
        names.append(buffer.raw[at + 19 : at + length].split(b"\0")[0].decode())
        at += length
    return names


def rest(fd: int) -> list[str]:
    """Return the names of a listing from here on."""
    names: list[str] = []
    while some := getdents(fd, 4096):
        names += some
    return names


NAMES = [f"name-{number:03}" for number in range(300)]


def test_listing_goes_on_after_a_call_that_got_nothing(mountpoint: Path) -> None:
    with renumbering(mountpoint, readdirplus=False) as m:
        m.model.mkdir("d")
        m.call("many", [("create", f"d/{name}") for name in NAMES])
        with opened(m / "d", os.O_RDONLY) as fd:
            got = getdents(fd, 1200)
            assert 5 < len(got) < 100
            state = m.dies()
            # At the successor, what follows is at other positions.
            for name in NAMES[:20]:
                state.model.unlink(state.model.walk("d").ino, name.encode())
            m.follow(state)
            fails(errno.EINVAL, getdents, fd, 20)
            got += rest(fd)
        assert sorted({*got, *NAMES[:20]} - {".", ".."}) == NAMES
        assert len(got) == len({*got})
