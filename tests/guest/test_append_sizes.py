# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test which appends ask for the file's size in exclusive mode, and where appends go."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.support.asynchronous import (
    ASYNC_DIO,
    Asynchronous,
    Opening,
    create_with_held_reply,
)
from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Mount, eventually, fails, mounted, running
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG
from tests.guest.support.wire import FOPEN_DIRECT_IO, FOPEN_NOFLUSH

_FIRST = fill("b", 100)


def _opened(m: Mount) -> int:
    return os.open(m / "f", os.O_WRONLY | os.O_APPEND)


def _appender(m: Mount) -> int:
    """Return a descriptor that appends, after an append that may have asked for the size."""
    fd = _opened(m)
    os.write(fd, b"one ")
    return fd


@pytest.mark.parametrize("extent", [{}, {"length": 50}, None], ids=["whole", "in part", "none"])
def test_append_after_an_append_sends_no_getattr(
    mountpoint: Path, lower: Path, extent: dict[str, int] | None
) -> None:
    """If only a part of the file is mapped, the kernel refuses each WRITE, and the daemon gets it.

    A refused WRITE changes nothing, so the size is still known.
    """
    path, mapped = backing(lower, _FIRST), extent == {}
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        make(m, "f", _FIRST)
        if extent is not None:
            whole(m, path, write=True, **extent)
        fd = _appender(m)
        asked, hits = m.count("getattr", "requests"), m.count("write", "hits")
        for n in range(20):
            os.write(fd, b"%02d" % n)
        assert m.count("getattr", "requests") == asked
        assert m.count("write", "hits") == hits + 20 * mapped
        os.close(fd)
        data = Path(path).read_bytes() if mapped else bytes(m.call("inode", "f").data)
        assert data == _FIRST + b"one " + b"".join(b"%02d" % n for n in range(20))
        if mapped:
            m.model.put("f", data)
        assert os.stat(m / "f").st_size == len(data)


def _announced(m: Mount) -> None:
    m.model.put("f", bytes(m.call("inode", "f").data) + b"longer ")
    m.call("inval_inode", "f")


def _invalidated(m: Mount) -> None:
    m.model.put("f", bytes(m.call("inode", "f").data) + b"longer ")
    m.connection.invalidate()


def _truncated(m: Mount) -> None:
    os.truncate(m / "f", 50)


def _grown(m: Mount) -> None:
    os.truncate(m / "f", 200)


def _written_elsewhere(m: Mount) -> None:
    fd = os.open(m / "f", os.O_WRONLY)
    os.pwrite(fd, b"behind ", 120)
    os.close(fd)


@pytest.mark.parametrize(
    "change", [_announced, _invalidated, _truncated, _grown, _written_elsewhere]
)
def test_append_goes_to_the_end_after_another_change(
    mountpoint: Path, change: Callable[[Mount], None]
) -> None:
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        make(m, "f", _FIRST)
        fd = _appender(m)
        os.write(fd, b"two ")
        change(m)
        before = bytes(m.call("inode", "f").data)
        os.write(fd, b"three")
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == before + b"three"


def _grow(m: Mount) -> bytes:
    """Let another program make the file longer, and the daemon announce it; return the bytes."""
    longer = bytes(m.call("inode", "f").data).ljust(200, b"x")
    m.model.put("f", longer)
    m.call("inval_attributes", "f")
    return longer


def _append_to_the_grown_file(m: Mount, fd: int) -> None:
    """Append after an append that has written within the grown file, and close *fd*."""
    before = bytes(m.call("inode", "f").data)
    assert len(before) == 200
    os.write(fd, b"three")
    os.close(fd)
    assert bytes(m.call("inode", "f").data) == before + b"three"


@pytest.mark.parametrize("point", ["before", "after"])
def test_append_goes_to_the_end_after_a_notification_during_another_append(
    mountpoint: Path, point: str
) -> None:
    """The notification comes while the daemon has the WRITE, which does not end after it."""
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        make(m, "f", _FIRST)
        fd = _appender(m)
        m.hold("write", point)
        with running(os.write, fd, b"two ") as writing:
            m.wait_held()
            _grow(m)
            m.release()
            assert writing.result() == 4
        _append_to_the_grown_file(m, fd)


def test_append_goes_to_the_end_if_a_notification_crosses_its_getattr(mountpoint: Path) -> None:
    """FUSE drops the reply with the size, which is older than the notification."""
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        make(m, "f", _FIRST)
        fd = _appender(m)
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        with running(os.write, fd, b"two ") as writing:
            m.wait_held()
            longer = _grow(m)
            m.release()
            assert writing.result() == 4
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == longer + b"two "


def test_append_goes_to_the_end_after_a_write_that_failed(mountpoint: Path) -> None:
    """The daemon may have written bytes before it failed."""
    with mounted(mountpoint, consistency="exclusive", **LONG) as m:
        make(m, "f", _FIRST)
        fd = _appender(m)
        m.call("deny", "write", 0, errno.EIO)
        fails(errno.EIO, os.write, fd, b"two ")
        m.call("deny", "write", 0, 0)
        before = bytes(m.call("inode", "f").data) + b"tw"
        m.model.put("f", before)
        os.write(fd, b"three")
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == before + b"three"


def test_append_goes_to_the_end_after_an_append_during_a_truncating_open(
    mountpoint: Path,
) -> None:
    """OPEN has truncated the file. FUSE sets its size to 0 once more, under the inode's lock.

    An append has got the lock before that: its bytes are in the file by then. Whole pages are
    written, because the OPEN waits for a page that a WRITE fills in part.
    """
    with mounted(mountpoint, consistency="exclusive", open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("b", BLOCK))
        first, second = _opened(m), _opened(m)
        os.write(first, fill("o", BLOCK))
        m.hold("write", "after")
        with running(os.write, first, fill("x", BLOCK)) as holder:
            m.wait_held()  # has the inode's lock
            with running(os.write, second, fill("a", BLOCK)) as appending:
                eventually(lambda: m.keeps_waiting(appending, 1))
                opening = Opening(m / "f", os.O_WRONLY | os.O_TRUNC)
                eventually(opening.truncates)  # waits behind the append
                assert not m.call("inode", "f").data
                m.release()
                assert holder.result() == BLOCK
                assert appending.result() == BLOCK
            truncating = opening.result()
        assert bytes(m.call("inode", "f").data) == fill("a", BLOCK)
        assert os.stat(m / "f").st_size == BLOCK
        os.write(second, b"end")
        assert bytes(m.call("inode", "f").data) == fill("a", BLOCK) + b"end"
        for fd in (first, second, truncating):
            os.close(fd)


def test_append_goes_to_the_end_after_a_create_that_found_the_file(mountpoint: Path) -> None:
    """FUSE believes the reply of a CREATE, however old, and appends have been made since."""
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("nodeid_per_file",),
        open_flags=FOPEN_NOFLUSH,
        **LONG,
    ) as m:
        make(m, "f", _FIRST)
        fd = _opened(m)
        os.write(fd, b"one ")
        opening = create_with_held_reply(m)
        os.write(fd, b"two ")
        os.write(fd, b"three ")
        m.release()
        created = opening.result()
        os.write(fd, b"four")
        assert bytes(m.call("inode", "f").data) == _FIRST + b"one two three four"
        os.close(created)
        os.close(fd)


def test_append_goes_to_the_end_if_the_reply_of_a_create_crosses_its_getattr(
    mountpoint: Path,
) -> None:
    """FUSE believes the older reply of a CREATE, and drops the one with the size.

    The size counts as valid then, and the append overwrites what was appended before.
    """
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("nodeid_per_file",),
        open_flags=FOPEN_NOFLUSH,
        **LONG,
    ) as m:
        first = fill("b", 100)
        make(m, "f", first)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"one ")
        opening = create_with_held_reply(m)
        os.write(fd, b"two ")
        os.write(fd, b"three ")
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        with running(os.write, fd, b"four") as writing:
            m.wait_held(2)
            m.release("create")
            created = opening.result()
            m.release()
            assert writing.result() == 4
        data = bytes(m.call("inode", "f").data)
        os.close(created)
        os.close(fd)
        assert data == first + b"one two three four"


@pytest.mark.parametrize("flags", [0, FOPEN_DIRECT_IO])
def test_append_goes_to_an_announced_end_with_and_without_fopen_direct_io(
    mountpoint: Path, flags: int
) -> None:
    with mounted(mountpoint, consistency="exclusive", open_flags=flags, **LONG) as m:
        make(m, "f", _FIRST)
        fd = _opened(m)
        os.write(fd, b"one ")
        longer = _grow(m)
        os.write(fd, b"two ")
        assert bytes(m.call("inode", "f").data) == longer + b"two "
        os.close(fd)


@pytest.mark.parametrize(
    ("consistency", "linked"), [("exclusive", False), ("exclusive", True), ("ttl", False)]
)
def test_size_is_right_after_a_truncating_open_has_waited_for_a_write(
    mountpoint: Path, consistency: str, linked: bool
) -> None:
    """FUSE sets the size to 0 after another task has asked for the attributes."""
    with mounted(mountpoint, consistency=consistency, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("b", BLOCK))
        if linked:  # the daemon's own timeouts
            m.model.hard_link("f", "other")
            m.call("inval_attributes", "f")
        first, second = _opened(m), os.open(m / "f", os.O_RDWR)
        m.hold("write", "after")
        with running(os.write, first, fill("o", BLOCK)) as holder:
            m.wait_held()  # has the inode's lock
            with running(os.lseek, second, 0, os.SEEK_END) as seeking:
                eventually(lambda: m.keeps_waiting(seeking, 1))
                opening = Opening(m / "f", os.O_WRONLY | os.O_TRUNC)
                eventually(opening.truncates)  # waits behind both
                m.model.put("f", b"another")
                m.call("inval_attributes", "f")
                m.release()
                assert holder.result() == BLOCK
                assert seeking.result() == len(b"another")
            truncating = opening.result()
        assert os.stat(m / "f").st_size == len(b"another")
        assert os.pread(second, 100, 0) == b"another"
        for each in (first, second, truncating):
            os.close(each)


def test_append_goes_to_the_end_if_a_create_and_a_notification_cross_its_getattr(
    mountpoint: Path,
) -> None:
    """FUSE drops the reply with the size, and a notification has ended its epoch.

    But the old reply of a CREATE has cleared inval_mask: FUSE's old size counts as the daemon's,
    after one round.
    """
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("nodeid_per_file",),
        default_permissions=False,  # open(2) asks for no attributes, which might be newer
        open_flags=FOPEN_NOFLUSH,
        **LONG,
    ) as m:
        make(m, "f", _FIRST)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"one ")
        opening = create_with_held_reply(m)
        os.write(fd, b"two ")
        os.write(fd, b"three ")
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        with running(os.write, fd, b"four") as writing:
            m.wait_held(2)
            m.call("inval_attributes", "f")  # crosses the GETATTR; no byte has changed
            m.release("create")
            created = opening.result()
            m.release()
            assert writing.result() == 4
        data = bytes(m.call("inode", "f").data)
        os.close(created)
        os.close(fd)
        assert data == _FIRST + b"one two three four"


def test_append_goes_to_the_end_if_a_create_ends_while_the_kernel_applies_the_size(
    mountpoint: Path,
) -> None:
    """efuse_size_apply() has set the size, and waits for a page that is being read.

    The old reply of a CREATE sets FUSE's size meanwhile, and generic_write_checks() takes that.
    """
    with (
        mounted(
            mountpoint,
            consistency="exclusive",
            declare=("nodeid_per_file",),
            generic_flags=ASYNC_DIO,
            open_flags=FOPEN_NOFLUSH,
            **LONG,
        ) as m,
        contextlib.ExitStack() as stack,
    ):
        make(m, "f", _FIRST)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        direct = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        plain = os.open(m / "f", os.O_RDONLY)
        os.write(fd, b"one ")
        # With these flags no page of the file is waited for before FUSE takes the reply.
        m.call("set_open_flags", FOPEN_NOFLUSH | FOPEN_DIRECT_IO)
        opening = create_with_held_reply(m)
        os.write(fd, b"two ")
        os.write(fd, b"three ")
        os.fstat(fd)  # the reads ask for nothing
        m.hold("read", "after")
        stack.enter_context(running(os.pread, plain, 10, 0))
        stack.callback(m.release)
        m.wait_held(2)  # 1: READ, which has page 0 locked
        m.hold("read", "after")
        reads = Asynchronous(direct, 1)
        m.wait_held(3)  # 2: READ of direct I/O
        longer = bytes(m.call("inode", "f").data) + b"longer "
        m.model.put("f", longer)
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        writing = stack.enter_context(running(os.write, fd, b"four"))
        m.wait_held(4)
        read_ = m.call("_held.pop", 2)
        m.call("_send", read_.answer)
        reads.wait()  # FUSE drops the reply of the GETATTR
        m.release("getattr")
        eventually(lambda: any("_cut" in name for name in writing.within()))
        m.release("create")
        task = Path(f"/proc/self/task/{opening.native_id}/stack")
        eventually(lambda: "_cut" in task.read_text())  # has set FUSE's size to 104
        m.release()
        created = opening.result()
        assert writing.result() == 4
        data = bytes(m.call("inode", "f").data)
        reads.close()
        for each in (fd, direct, plain, created):
            os.close(each)
        assert data == longer + b"four"
