# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mount outlives its daemon: what callers see while none serves, and after a successor came."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.guest.support.daemons import eventually, fails, running
from tests.guest.support.succession import Recovering, recovering

STATES = ("before", "after")


def size_of(path: str) -> int:
    return os.stat(path).st_size


@pytest.mark.parametrize("point", STATES)
def test_getattr_is_answered_by_the_successor(mountpoint: Path, point: str) -> None:
    with recovering(mountpoint) as m:
        m.model.create("file", b"data")
        m.hold("getattr", point)
        with running(size_of, str(m.path)) as call:
            m.wait_held()
            state = m.dies()
            assert m.connection.connected
            assert m.connection.incarnation == 0
            assert not call.done()
            m.follow(state)
            assert call.result() == state.model.get(1).size
        assert m.connection.incarnation == 1
        assert (m.record.lost, m.record.resent, m.record.failed) == (1, 1, 0)
        assert Path(m / "file").read_bytes() == b"data"


# Requests that are sent again, whether or not the dead daemon has carried them out


def read_whole(path: str) -> bytes:
    return Path(path).read_bytes()


def write_middle(path: str) -> int:
    fd = os.open(path, os.O_WRONLY)
    try:
        return os.pwrite(fd, b"XY", 1)
    finally:
        os.close(fd)


def synchronize(path: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def allocate(path: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.posix_fallocate(fd, 0, 6)
    finally:
        os.close(fd)


def copy_to_end(path: str) -> int:
    fd = os.open(path, os.O_RDWR)
    try:
        return os.copy_file_range(fd, fd, 2, 0, 4)
    finally:
        os.close(fd)


def open_truncated(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))


REPEATED: dict[str, tuple[Callable[[str], Any], Any, bytes]] = {
    "lookup": (size_of, 4, b"data"),
    "open": (read_whole, b"data", b"data"),
    "open, truncating": (open_truncated, None, b""),
    "read": (read_whole, b"data", b"data"),
    "flush": (read_whole, b"data", b"data"),
    "setattr": (lambda path: os.truncate(path, 2), None, b"da"),
    "write": (write_middle, 2, b"dXYa"),
    "fsync": (synchronize, None, b"data"),
    "fallocate": (allocate, None, b"data\0\0"),
    "copy_file_range": (copy_to_end, 2, b"datada"),
    "getxattr": (lambda path: os.getxattr(path, "user.old"), b"value", b"data"),
    "listxattr": (os.listxattr, ["user.old"], b"data"),
    "setxattr": (lambda path: os.setxattr(path, "user.new", b"value"), None, b"data"),
    "readlink": (lambda path: os.readlink(path + ".link"), "target", b"data"),
    "opendir": (lambda path: sorted(os.listdir(Path(path).parent)), ["file", "file.link"], b"data"),
    "readdir": (lambda path: sorted(os.listdir(Path(path).parent)), ["file", "file.link"], b"data"),
    "statfs": (lambda path: os.statvfs(path).f_files, 3, b"data"),
}


@pytest.mark.parametrize("point", STATES)
@pytest.mark.parametrize("what", REPEATED)
def test_idempotent_request_is_sent_again(mountpoint: Path, what: str, point: str) -> None:
    act, expected, content = REPEATED[what]
    opcode = what.partition(",")[0]
    with recovering(mountpoint, readdirplus=False) as m:
        m.model.create("file", b"data")
        os.setxattr(m / "file", "user.old", b"value")
        os.symlink("target", m / "file.link")
        held = m.copy_opcode if opcode == "copy_file_range" else opcode
        with m.replaced_during(held, point, act, m / "file") as call:
            assert call.result() == expected
        assert m.record.lost >= 1
        assert (m.record.resent >= 1, m.record.settled, m.record.failed) == (True, 0, 0)
        assert bytes(m.call("inode", "file").data) == content
        assert read_whole(m / "file") == content


def test_release_is_sent_again(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        m.model.create("file", b"data")
        m.hold("release", "before")
        assert read_whole(m / "file") == b"data"
        m.wait_held()
        state = m.dies()
        assert len(state.handles) == 1
        m.follow(state)
        eventually(lambda: not m.call("handles"), "the RELEASE")
        # It may be queued again before the daemon's end is known, and then once more.
        assert m.record.lost == m.record.resent
        assert (m.record.resent >= 1, m.record.failed) == (True, 0)


# Requests whose outcome is established first


def make_file(path: str) -> None:
    with open(path, "xb") as file:
        file.write(b"made")


def append(path: str) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        return os.write(fd, b"more")
    finally:
        os.close(fd)


SETTLED: dict[str, tuple[Callable[[str], Any], Callable[[str], bool]]] = {
    "mkdir": (lambda top: os.mkdir(f"{top}/new"), lambda top: os.listdir(f"{top}/new") == []),
    "mknod": (
        lambda top: os.mknod(f"{top}/new", stat.S_IFIFO | 0o600),
        lambda top: stat.S_ISFIFO(os.stat(f"{top}/new").st_mode),
    ),
    "symlink": (
        lambda top: os.symlink("file", f"{top}/new"),
        lambda top: os.readlink(f"{top}/new") == "file",
    ),
    "link": (
        lambda top: os.link(f"{top}/file", f"{top}/new"),
        lambda top: os.stat(f"{top}/file").st_nlink == 2 and os.path.samefile(
            f"{top}/file", f"{top}/new"
        ),
    ),
    "create": (
        lambda top: make_file(f"{top}/new"),
        lambda top: read_whole(f"{top}/new") == b"made",
    ),
    "unlink": (
        lambda top: os.unlink(f"{top}/file"),
        lambda top: not os.path.exists(f"{top}/file"),
    ),
    "rmdir": (
        lambda top: os.rmdir(f"{top}/dir"),
        lambda top: not os.path.exists(f"{top}/dir"),
    ),
    "rename": (
        lambda top: os.rename(f"{top}/file", f"{top}/dir/new"),
        lambda top: read_whole(f"{top}/dir/new") == b"data" and os.listdir(top) == ["dir"],
    ),
    "write": (
        lambda top: append(f"{top}/file"),
        lambda top: read_whole(f"{top}/file") == b"datamore",
    ),
}  # fmt: skip


def prepare(m: Recovering) -> None:
    m.model.create("file", b"data")
    os.mkdir(m / "dir")


@pytest.mark.parametrize("point", STATES)
@pytest.mark.parametrize("what", SETTLED)
def test_outcome_is_established_in_exclusive_mode(mountpoint: Path, what: str, point: str) -> None:
    act, done = SETTLED[what]
    with recovering(mountpoint, consistency="exclusive") as m:
        prepare(m)
        with m.replaced_during(what, point, act, str(m.path)) as call:
            call.result()
        assert (m.record.settled, m.record.failed) == (int(point == "after"), 0)
        assert m.record.resent >= (point == "before")
        assert done(str(m.path))


@pytest.mark.parametrize("what", SETTLED)
def test_request_that_was_not_carried_out_is_sent_again(mountpoint: Path, what: str) -> None:
    act, done = SETTLED[what]
    with recovering(mountpoint) as m:
        prepare(m)
        with m.replaced_during(what, "before", act, str(m.path)) as call:
            if what == "write":
                fails(errno.EIO, call.result)  # another client may have appended, too
            else:
                call.result()
                assert done(str(m.path))
                assert (m.record.resent, m.record.failed) == (1, 0)


@pytest.mark.parametrize("what", SETTLED)
def test_request_that_another_client_may_have_carried_out_fails(
    mountpoint: Path, what: str
) -> None:
    act, done = SETTLED[what]
    with recovering(mountpoint) as m:
        prepare(m)
        with m.replaced_during(what, "after", act, str(m.path)) as call:
            fails(errno.EIO, call.result)
        assert (m.record.settled, m.record.failed) == (0, 1)
        if what != "create":
            assert done(str(m.path))


UNSETTLED: dict[str, tuple[str, Callable[[str], Any], str | None]] = {
    "made extended attribute": (
        "setxattr",
        lambda path: os.setxattr(path, "user.new", b"value", os.XATTR_CREATE),
        "before",
    ),
    "removed extended attribute": (
        "removexattr",
        lambda path: os.removexattr(path, "user.old"),
        "before",
    ),
}


@pytest.mark.parametrize("point", STATES)
@pytest.mark.parametrize("what", UNSETTLED)
def test_extended_attribute_that_may_have_been_there_fails(
    mountpoint: Path, what: str, point: str
) -> None:
    opcode, act, known = UNSETTLED[what]
    with recovering(mountpoint, consistency="exclusive") as m:
        m.model.create("file", b"data")
        os.setxattr(m / "file", "user.old", b"value")
        with m.replaced_during(opcode, point, act, m / "file") as call:
            if point == known:
                call.result()
            else:
                fails(errno.EIO, call.result)
        new = {"user.old", "user.new"} if opcode == "setxattr" else set()
        assert set(os.listxattr(m / "file")) == new
