# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test where an append goes if no reply tells a size that stays, in exclusive mode."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.guest.support.asynchronous import (
    ASYNC_DIO,
    PWRITE,
    Asynchronous,
    Block,
    Opening,
    Queue,
    create_with_held_reply,
)
from tests.guest.support.backing_files import make
from tests.guest.support.daemons import eventually, force_stat, mounted, running
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.manual_daemon import until
from tests.guest.support.wire import FOPEN_DIRECT_IO, FOPEN_NOFLUSH

_FIRST = fill("b", 100)


def test_append_goes_to_the_end_if_a_create_crosses_its_getattr_during_a_flush(
    mountpoint: Path,
) -> None:
    """A FLUSH of the file is in flight, and FUSE takes the old size of a CREATE."""
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("nodeid_per_file",),
        default_permissions=False,  # open(2) asks for no attributes, which might be newer
        **LONG,
    ) as m:
        make(m, "f", _FIRST)
        third = os.open(m / "f", os.O_WRONLY)
        m.call("set_open_flags", FOPEN_NOFLUSH)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        os.pwrite(third, _FIRST[:1], 0)
        os.write(fd, b"one ")
        opening = create_with_held_reply(m)
        os.write(fd, b"two ")
        os.write(fd, b"three ")
        m.hold("flush", "after")
        with running(os.close, third) as closing:
            m.wait_held(2)
            m.hold("getattr", "after")
            with running(os.write, fd, b"four") as writing:
                m.wait_held(3)
                m.release("create")
                created = opening.result()
                m.release("getattr")
                m.release()
                assert writing.result() == 4
            closing.result()
        data = bytes(m.call("inode", "f").data)
        for each in (third, created, fd):
            os.close(each)
        assert data == _FIRST + b"one two three four"


@pytest.mark.parametrize("busy", [True, False], ids=["a write is in flight", "two names"])
def test_append_goes_to_an_announced_end_although_fuse_drops_each_reply_with_the_size(
    mountpoint: Path, busy: bool
) -> None:
    """FUSE drops each reply with the size: a direct read has completed meanwhile.

    No size is known for longer than a moment, because of a WRITE or of another name of the file.
    """
    rounds = 17  # an append asks at most 8 times, and once more at most 8 times
    data = fill("b", rounds * BLOCK)
    block = Block(data[:BLOCK])
    with (
        mounted(
            mountpoint,
            consistency="exclusive",
            generic_flags=ASYNC_DIO,
            open_flags=FOPEN_NOFLUSH,
            **LONG,
        ) as m,
        contextlib.ExitStack() as stack,
    ):
        make(m, "f", data)
        if not busy:
            m.model.hard_link("f", "other")
            m.call("inval_attributes", "f")
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        direct = os.open(m / "f", os.O_RDWR | os.O_DIRECT)
        os.write(fd, b"one ")
        os.stat(m / "f")
        for _ in range(rounds):
            m.hold("read", "after")
        reads = Asynchronous(direct, rounds)
        m.wait_held(rounds)
        writes = Queue()
        if busy:
            m.hold("write", "after")
            writes.submit(PWRITE, direct, block.address, BLOCK, 0)
            m.wait_held(rounds + 1)
        longer = bytes(m.call("inode", "f").data) + b"of another program "
        m.model.put("f", longer)
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        writing = stack.enter_context(running(os.write, fd, b"two "))
        stack.callback(m.release)
        m.wait_held(rounds + 1 + busy)
        asked = 1
        for left in reversed(range(rounds)):
            read_ = m.call("_held.pop", 0)
            assert read_.request.opcode == "read"
            m.call("_send", read_.answer)
            assert reads.wait() == BLOCK
            m.call("release_and_hold", "getattr", "after")
            until(lambda left=left: writing.done() or m.held() == left + 1 + busy)
            if writing.done():
                break
            asked += 1
        m.release()
        assert writing.result() == 4
        assert bytes(m.call("inode", "f").data) == longer + b"two "
        # With two names no reply stays known, and an append looks at its position twice.
        assert asked == (1 if busy else 2), f"asked {asked} times: once more for each read"
        if busy:
            assert writes.results(1) == [BLOCK]
        writes.close()
        reads.close()
        os.close(direct)
        os.close(fd)


@pytest.mark.parametrize("asks", [True, False], ids=["another task asks", "nothing asks"])
def test_append_goes_to_an_end_that_is_announced_during_its_getxattr(
    mountpoint: Path, asks: bool
) -> None:
    with mounted(mountpoint, consistency="exclusive", open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", _FIRST)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"one ")
        m.call("inval_attributes", "f")
        m.hold("getxattr", "after")
        with running(os.write, fd, b"two ") as writing:
            m.wait_held()
            longer = bytes(m.call("inode", "f").data).ljust(200, b"x")
            m.model.put("f", longer)
            m.call("inval_attributes", "f")
            if asks:
                assert os.stat(m / "f").st_size == 200
            m.release()
            assert writing.result() == 4
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == longer + b"two "


@pytest.mark.parametrize("attach", [True, False], ids=["handlers", "no handlers"])
@pytest.mark.parametrize("linked", [True, False], ids=["two names", "one name"])
def test_append_sends_at_most_one_getattr(mountpoint: Path, attach: bool, linked: bool) -> None:
    with mounted(
        mountpoint, consistency="exclusive", attach=attach, open_flags=FOPEN_NOFLUSH, **LONG
    ) as m:
        make(m, "f", _FIRST)
        if linked:
            m.model.hard_link("f", "other")
            m.call("inval_attributes", "f")
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"one ")
        m.log()
        for _ in range(4):
            os.write(fd, b"two ")
        asked = m.asked()
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == _FIRST + b"one " + 4 * b"two "
    assert asked.count("getattr") <= 4, asked


@pytest.mark.parametrize("flags", [0, FOPEN_DIRECT_IO], ids=["buffered", "direct_io"])
def test_append_leaves_no_gap_while_an_open_truncates(mountpoint: Path, flags: int) -> None:
    """The reply with the size is from before the OPEN, which is in flight."""
    flags |= FOPEN_NOFLUSH
    with mounted(mountpoint, consistency="exclusive", open_flags=flags, **LONG) as m:
        make(m, "f", _FIRST)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"one ")
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        with running(os.write, fd, b"two ") as writing:
            m.wait_held()
            m.hold("open", "after")
            opening = Opening(m / "f", os.O_WRONLY | os.O_TRUNC)
            m.wait_held(2)
            m.release("getattr")
            assert writing.result() == 4
            data = bytes(m.call("inode", "f").data)
            m.release()
        os.close(opening.result())
        os.close(fd)
        assert data == b"two "


def test_append_to_a_file_with_two_nodeids_uses_the_reply_to_its_own_getattr(
    mountpoint: Path,
) -> None:
    """An older reply to another task comes later. The other nodeid's changes are not seen here."""
    with (
        mounted(mountpoint, consistency="exclusive", open_flags=FOPEN_NOFLUSH, **LONG) as m,
        contextlib.ExitStack() as stack,
    ):
        make(m, "f", _FIRST)
        m.model.hard_link("f", "other")
        m.call("inval_inode", "f")
        os.stat(m / "f")
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        reader = os.open(m / "f", os.O_RDONLY)
        m.hold("read", "after")
        reading = stack.enter_context(running(os.pread, reader, 10, 0))
        stack.callback(m.release)
        m.wait_held()  # the page is locked
        m.call("inval_attributes", "f")
        m.hold("getattr", "before")
        writing = stack.enter_context(running(os.write, fd, b"appended"))
        stack.callback(m.release)
        m.wait_held(2)
        m.hold("getattr", "after")
        asking = stack.enter_context(running(force_stat, m / "f"))
        stack.callback(m.release)
        m.wait_held(3)
        m.model.put("f", _FIRST + b"acknowledged")  # by the other nodeid
        held = m.call("_held.pop", 1)
        assert held.request.opcode == "getattr"
        m.call("_send", m.call("_answer", held.request))
        eventually(lambda: any("_cut" in name for name in writing.within()))
        m.release("getattr")
        assert asking.result().st_size == len(_FIRST)
        m.release()
        assert writing.result() == 8
        assert reading.result() == _FIRST[:10]
        data = bytes(m.call("inode", "f").data)
        os.close(fd)
        os.close(reader)
        assert data == _FIRST + b"acknowledgedappended"
