# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test where an extent of fixed length ends after another program has cut its file, and something
else has crossed that: a request in flight, a reply that is old, or a request that fails."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guest.support import wire
from tests.guest.support.asynchronous import (
    ASYNC_DIO,
    Asynchronous,
    Opening,
    create_with_held_reply,
)
from tests.guest.support.backing_files import backing, make
from tests.guest.support.daemons import Call, Mount, eventually, force_stat, mounted, running
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.wire import FOPEN_DIRECT_IO, FOPEN_NOFLUSH

_LENGTH = 10 * BLOCK
_LEFT = fill("d", 50)
_HOW = pytest.mark.parametrize("how", ["read", "write"])
_MODES = pytest.mark.parametrize("mode", ["ttl", "cto", "exclusive"])
_NO_TIMEOUT = pytest.mark.parametrize(
    ("mode", "timeouts"),
    [("strict", LONG), ("ttl", {"entry_timeout": 0.0, "attr_timeout": 0.0})],
    ids=["strict", "ttl"],
)


@contextlib.contextmanager
def _file(
    mountpoint: Path, lower: Path, mode: str, **options: Any
) -> Iterator[tuple[Mount, int, contextlib.ExitStack]]:
    """Mount a file that an extent covers, and open it. The stack ends before the mount."""
    path = backing(lower, fill("d", _LENGTH))
    chosen = {"open_flags": FOPEN_NOFLUSH, **LONG, **options}
    with (
        mounted(mountpoint, consistency=mode, **chosen) as m,
        contextlib.ExitStack() as stack,
    ):
        make(m, "f", fill("d", _LENGTH))
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=_LENGTH, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        stack.callback(os.close, fd)
        stack.callback(m.release)
        os.fstat(fd)
        yield m, fd, stack


def _direct(m: Mount, stack: contextlib.ExitStack, flags: int = 0) -> int:
    """Open the file with FOPEN_DIRECT_IO."""
    m.call("set_open_flags", FOPEN_NOFLUSH | FOPEN_DIRECT_IO)
    fd = os.open(m / "f", os.O_RDWR | flags)
    m.call("set_open_flags", FOPEN_NOFLUSH)
    stack.callback(os.close, fd)
    return fd


def _waiting(
    m: Mount, stack: contextlib.ExitStack, opcode: str, when: str, *call: Any, held: int = 1
) -> Call[Any]:
    """Make a call in another process, whose request the daemon holds. It holds *held* then."""
    m.hold(opcode, when)
    waiting = stack.enter_context(running(*call))
    stack.callback(m.release)
    m.wait_held(held)
    return waiting


def _fail(m: Mount, waiting: Call[Any], number: int) -> None:
    """Answer the request that the daemon holds with the errno *number*."""
    held = m.call("_held.pop", 0)
    m.call("_send", wire.reply(held.request.unique, number))
    with pytest.raises(OSError):
        waiting.result()


def _cut(m: Mount, *, announced: bool = True) -> None:
    """Let another program make the file shorter."""
    m.model.put("f", _LEFT)
    if announced:
        m.call("inval_attributes", "f")


def _see(m: Mount, fd: int) -> None:
    """Let FUSE see the new end."""
    assert os.stat(m / "f").st_size == len(_LEFT)
    assert os.pread(fd, 10, 0) == _LEFT[:10]


def _check(m: Mount, fd: int, how: str = "write") -> None:
    """Check that a read(2) ends at the end, or that a write(2) behind it is in the file."""
    if how == "read":
        assert os.pread(fd, BLOCK, 0) == _LEFT
        return
    at = 5 * BLOCK
    assert os.pwrite(fd, b"w" * 100, at) == 100
    data = bytes(m.call("inode", "f").data)
    assert (os.fstat(fd).st_size, len(data)) == (at + 100, at + 100)
    assert data == _LEFT.ljust(at, b"\0") + b"w" * 100


@_HOW
def test_read_and_write_after_an_open_in_cto_use_the_new_size(
    mountpoint: Path, lower: Path, how: str
) -> None:
    with _file(mountpoint, lower, "cto") as (m, fd, _):
        _cut(m, announced=False)
        other = os.open(m / "f", os.O_RDWR)
        _check(m, fd, how)
        os.close(other)


def test_attributes_that_cross_an_open_in_cto_are_not_used(mountpoint: Path) -> None:
    with (
        mounted(mountpoint, consistency="cto", open_flags=FOPEN_NOFLUSH, **LONG) as m,
        contextlib.ExitStack() as stack,
    ):
        make(m, "f", fill("d", _LENGTH))
        asking = _waiting(m, stack, "getattr", "after", force_stat, m / "f")
        m.model.put("f", _LEFT)
        fd = os.open(m / "f", os.O_RDWR)
        m.release()
        assert asking.result().st_size == _LENGTH
        size = os.fstat(fd).st_size
        os.close(fd)
        assert size == len(_LEFT)


@_HOW
@_MODES
@pytest.mark.parametrize("case", ["one name", "two names", "no handlers"])
def test_write_that_crosses_a_truncation_does_not_restore_the_old_size(
    mountpoint: Path, lower: Path, mode: str, case: str, how: str
) -> None:
    with _file(mountpoint, lower, mode, attach=case != "no handlers") as (m, fd, stack):
        if case == "two names":
            m.model.hard_link("f", "other")
            m.call("inval_attributes", "f")
        direct = _direct(m, stack)
        writing = _waiting(m, stack, "write", "after", os.pwrite, direct, b"1" * 100, 11 * BLOCK)
        _cut(m)
        _see(m, direct)
        m.release()
        assert writing.result() == 100
        _check(m, fd, how)


@_MODES
@pytest.mark.parametrize("number", [errno.EIO, errno.EINTR], ids=["EIO", "EINTR"])
def test_truncate_that_fails_after_it_cut_the_file_voids_the_old_size(
    mountpoint: Path, lower: Path, mode: str, number: int
) -> None:
    with _file(mountpoint, lower, mode) as (m, fd, stack):
        cutting = _waiting(m, stack, "setattr", "after", os.truncate, m / "f", len(_LEFT))
        _fail(m, cutting, number)
        _check(m, fd)


@_MODES
def test_truncating_open_that_fails_after_it_cut_the_file_voids_the_old_size(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    with _file(mountpoint, lower, mode) as (m, fd, stack):
        opening = _waiting(m, stack, "open", "before", os.open, m / "f", os.O_WRONLY | os.O_TRUNC)
        _cut(m, announced=False)
        _fail(m, opening, errno.EIO)
        _check(m, fd)


@_MODES
def test_ioctl_that_truncates_the_file_voids_the_old_size(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    with _file(mountpoint, lower, mode, ioctl=(0, 0)) as (m, fd, stack):
        cutting = _waiting(m, stack, "ioctl", "before", fcntl.ioctl, fd, 0x1234)
        _cut(m, announced=False)
        m.release()
        assert cutting.result() == 0
        _check(m, fd)


@_MODES
def test_copy_that_crosses_a_truncation_does_not_restore_the_old_size(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    with _file(mountpoint, lower, mode) as (m, fd, stack):
        direct = _direct(m, stack)
        make(m, "g", fill("g", BLOCK))
        other = os.open(m / "g", os.O_RDONLY)
        stack.callback(os.close, other)
        copying = _waiting(
            m, stack, m.copy_opcode, "after", os.copy_file_range, other, fd, BLOCK, 0, 8 * BLOCK
        )
        _cut(m)
        _see(m, direct)
        m.release()
        assert copying.result() == BLOCK
        _check(m, fd)


@_MODES
@pytest.mark.parametrize("request_name", ["chmod", "link"])
@_HOW
def test_size_in_a_reply_that_crosses_a_truncation_is_not_used(
    mountpoint: Path, lower: Path, mode: str, request_name: str, how: str
) -> None:
    with _file(mountpoint, lower, mode, declare=("nodeid_per_file",)) as (m, fd, stack):
        opcode, *call = {
            "chmod": ("setattr", os.chmod, m / "f", 0o600),
            "link": ("link", os.link, m / "f", m / "h"),
        }[request_name]
        changing = _waiting(m, stack, opcode, "after", *call)
        _cut(m)
        if request_name == "chmod":
            _see(m, fd)
        m.release()
        changing.result()
        _check(m, fd, how)


@pytest.mark.parametrize("mode", ["ttl", "cto"])
def test_write_does_not_use_the_size_in_an_old_reply_of_a_create(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    options = {"declare": ("nodeid_per_file",), "default_permissions": False}
    with _file(mountpoint, lower, mode, **options) as (m, fd, stack):
        opening = create_with_held_reply(m)
        os.ftruncate(fd, len(_LEFT))
        m.release("create")
        stack.callback(os.close, opening.result())
        _check(m, fd)


@pytest.mark.parametrize("mode", ["ttl", "exclusive"])
def test_store_notification_beyond_eof_does_not_extend_the_file(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    with _file(mountpoint, lower, mode) as (m, fd, _):
        _cut(m)
        _see(m, fd)
        m.call("store", "f", 9 * BLOCK, b"s" * BLOCK)
        _check(m, fd)


@_NO_TIMEOUT
def test_write_reaches_the_file_if_fuse_drops_the_size_it_asked_for(
    mountpoint: Path, lower: Path, mode: str, timeouts: dict[str, float]
) -> None:
    """A direct read that ends during the question makes FUSE drop the answer."""
    with _file(mountpoint, lower, mode, generic_flags=ASYNC_DIO, **timeouts) as (m, fd, stack):
        direct = _direct(m, stack, os.O_DIRECT)
        m.hold("read", "after")
        reads = Asynchronous(direct, 1)
        stack.callback(reads.close)
        m.wait_held()
        _cut(m, announced=False)
        writing = _waiting(
            m, stack, "getattr", "after", os.pwrite, fd, b"w" * 100, 5 * BLOCK, held=2
        )
        m.release("read")
        assert reads.wait() == BLOCK
        m.release()
        assert writing.result() == 100
        data = bytes(m.call("inode", "f").data)
        assert data == _LEFT.ljust(5 * BLOCK, b"\0") + b"w" * 100


@_NO_TIMEOUT
def test_read_whose_getattr_crosses_an_append_ends_at_the_size_before_or_after_it(
    mountpoint: Path, lower: Path, mode: str, timeouts: dict[str, float]
) -> None:
    with _file(mountpoint, lower, mode, **timeouts) as (m, fd, stack):
        end = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        stack.callback(os.close, end)
        os.fstat(fd)
        _cut(m, announced=False)
        reading = _waiting(m, stack, "getattr", "after", os.pread, fd, BLOCK, 0)
        writing = _waiting(m, stack, "write", "before", os.write, end, b"a" * 10, held=2)
        m.release("getattr")
        eventually(lambda: reading.done() or any("folio" in name for name in reading.within()))
        m.release()
        seen = reading.result()
        assert writing.result() == 10
        # Before the append, or after it: the bytes between both ends are zeros.
        assert seen in (_LEFT, _LEFT.ljust(BLOCK, b"\0"))


def _from_map(path: str, fd: int, at: int) -> int:
    """Write 100 bytes from a map of another file, whose page has to be read first."""
    other = os.open(path, os.O_RDWR)
    with mmap.mmap(other, BLOCK) as view, memoryview(view) as buffer, buffer[:100] as part:
        return os.pwrite(fd, part, at)


def _into_map(path: str, fd: int) -> bytes:
    """Read a block into a map of another file, whose page has to be read first."""
    other = os.open(path, os.O_RDWR)
    with mmap.mmap(other, BLOCK) as view, memoryview(view) as buffer:
        moved = os.preadv(fd, [buffer[:BLOCK]], 0)
        return bytes(buffer[:moved])


def test_write_does_not_use_a_size_that_a_notification_has_voided_meanwhile(
    mountpoint: Path, lower: Path
) -> None:
    """The file is cut while the write waits for its buffer."""
    with _file(mountpoint, lower, "ttl") as (m, fd, stack):
        make(m, "g", b"w" * BLOCK)
        m.call("inval_inode", "f")
        writing = _waiting(m, stack, "read", "before", _from_map, m / "g", fd, 5 * BLOCK)
        _cut(m)
        _see(m, fd)
        m.release()
        assert writing.result() == 100
        assert os.pwrite(fd, b"x" * 100, 4 * BLOCK) == 100
        size = len(m.call("inode", "f").data)
        assert os.fstat(fd).st_size == size >= 4 * BLOCK + 100


def test_bytes_that_truncate_has_cut_off_during_a_read_are_not_cached(
    mountpoint: Path, lower: Path
) -> None:
    """The file is cut while the read waits for its buffer."""
    with _file(mountpoint, lower, "ttl", path="cache") as (m, fd, stack):
        make(m, "g", fill("g", BLOCK))
        m.call("inval_inode", "f")
        reading = _waiting(m, stack, "read", "before", _into_map, m / "g", fd)
        os.ftruncate(fd, len(_LEFT))
        m.release()
        reading.result()
        seen = [os.pread(fd, BLOCK, 0) for _ in range(3)]
        assert os.fstat(fd).st_size == len(_LEFT)
        assert seen == [_LEFT] * 3


@pytest.mark.parametrize("case", ["no handlers", "two names"])
def test_exclusive_mount_without_timeouts_sends_getattr_before_each_read_and_write(
    mountpoint: Path, lower: Path, case: str
) -> None:
    options = {"entry_timeout": 0.0, "attr_timeout": 0.0, "attach": case != "no handlers"}
    with _file(mountpoint, lower, "exclusive", **options) as (m, fd, _):
        if case == "two names":
            m.model.hard_link("f", "other")
            m.call("inval_attributes", "f")
        m.log()
        for n in range(8):
            assert os.pread(fd, 100, n * BLOCK) == fill("d", _LENGTH)[n * BLOCK :][:100]
            assert os.pwrite(fd, b"w" * 100, n * BLOCK) == 100
        asked = m.asked()
        assert asked.count("getattr") == 16
        assert not {"read", "write"} & set(asked)


def _lengthened(m: Mount, stack: contextlib.ExitStack, fd: int) -> Call[Any]:
    """Let a WRITE make the file longer, and FUSE see that before the WRITE is answered."""
    _cut(m)
    assert os.pread(fd, BLOCK, 0) == _LEFT
    direct = _direct(m, stack)
    assert os.fstat(fd).st_size == len(_LEFT)
    call = _waiting(m, stack, "write", "after", os.pwrite, direct, b"1" * 100, 5 * BLOCK)
    assert force_stat(m / "f").st_size == 5 * BLOCK + 100
    return call


@_MODES
def test_read_during_a_write_that_extends_the_file_does_not_end_at_the_old_size(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    with _file(mountpoint, lower, mode) as (m, fd, stack):
        writing = _lengthened(m, stack, fd)
        seen = os.pread(fd, 200, 5 * BLOCK)
        m.release()
        assert writing.result() == 100
        assert seen == b"1" * 100


@_MODES
def test_map_during_a_write_that_extends_the_file_does_not_end_at_the_old_size(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    with _file(mountpoint, lower, mode) as (m, fd, stack):
        writing = _lengthened(m, stack, fd)
        with mmap.mmap(fd, 5 * BLOCK + 100, prot=mmap.PROT_READ) as view:
            seen = view[5 * BLOCK :]
        m.release()
        assert writing.result() == 100
        assert seen == b"1" * 100


def test_size_in_a_reply_that_crosses_an_eviction_is_not_used(
    mountpoint: Path, lower: Path
) -> None:
    """FUSE takes the size in the reply of a LOOKUP, but asks for it again before it shows it."""
    path = backing(lower, fill("d", _LENGTH))
    with (
        mounted(
            mountpoint,
            declare=("nodeid_per_file",),
            default_permissions=False,
            open_flags=FOPEN_NOFLUSH,
            **LONG,
        ) as m,
        contextlib.ExitStack() as stack,
    ):
        m.model.create("f", fill("d", _LENGTH))
        m.model.hard_link("f", "g")
        m.hold("lookup", "after", b"f")
        opening = Opening(m / "f", os.O_RDWR)
        stack.callback(m.release)
        m.wait_held()
        _cut(m, announced=False)
        assert os.stat(m / "g").st_size == len(_LEFT)
        m.drop()
        m.hold("open", "before")
        m.release("lookup")
        m.wait_held()
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=_LENGTH, write=True)
        m.release()
        fd = opening.result()
        stack.callback(os.close, fd)
        _check(m, fd, "read")
        _check(m, fd)


@_MODES
def test_large_write_within_the_file_is_one_request(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    """A WRITE of so many blocks counts as a change of all of the content."""
    length = 9 << 20
    path = backing(lower, b"d" * length)
    with mounted(mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", b"d" * length)
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=length, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        with m.answered("write"):
            assert os.pwrite(fd, b"w" * length, 0) == length
        os.close(fd)
        assert Path(path).read_bytes() == b"w" * length
