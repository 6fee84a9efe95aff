# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test files that the kernel opened, and whose daemon is asked for a handle when one is needed."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.guest.support.daemons import Mount, eventually, force_stat, mounted, running
from tests.guest.support.scripted_daemon import Options
from tests.guest.support.succession import renumbering
from tests.guest.support.wire import (
    FOPEN_DIRECT_IO,
    FOPEN_NONSEEKABLE,
    FOPEN_STREAM,
    FUSE_ASYNC_DIO,
    FUSE_FLOCK_LOCKS,
)

_OPENS = {"open", "flush", "release", "opendir", "releasedir", "readdir", "readdirplus"}
_PART = 128 << 10
# FUSE of Linux 7.3 reports EIO for a page that it could not read, whatever the reason was.
_PAGE_ERRORS = (errno.EMFILE, errno.EIO)


@contextmanager
def _lazy(mountpoint: Path, **options: Any) -> Iterator[Mount]:
    """Mount the file f, which was opened for reading once, and whose first bytes are known."""
    with mounted(mountpoint, consistency="exclusive", declare=("lazy_open",), **options) as m:
        m.model.create("f", _bytes(4 * _PART))
        with open(m / "f", "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            assert file.read(4096) == _bytes(4096)
        eventually(lambda: not m.call("handles"))
        yield m


def _bytes(size: int) -> bytes:
    return b"".join(b"%07d\n" % n for n in range((size + 7) // 8))[:size]


def _part(number: int) -> bytes:
    """Return what a page of f has, the first one of a part that no test has read before."""
    return _bytes(4 * _PART)[number * _PART :][:4096]


def _filled(m: Mount, number: int) -> set[str]:
    """Make files in the root, and return the names of all that are there."""
    names = {f"a name of some length, {each}" for each in range(number)}
    for name in names:
        m.model.create(name)
    m.connection.invalidate()
    return {"f", *names}


@contextmanager
def _opened(m: Mount, name: str = "f") -> Iterator[int]:
    """Open a file without the daemon; nothing is read ahead."""
    with m.answered("open"):
        fd = os.open(m / name, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        yield fd
    finally:
        os.close(fd)


def _error_of_a_read(fd: int) -> int | None:
    with pytest.raises(OSError) as raised:
        os.pread(fd, 4096, _PART)
    return raised.value.errno


def _asked_for_opens(m: Mount) -> list[str]:
    return [opcode for opcode in m.asked() if opcode in _OPENS]


def test_file_whose_bytes_are_known_is_opened_read_and_closed_without_the_daemon(
    mountpoint: Path,
) -> None:
    with _lazy(mountpoint) as m:
        m.log()
        hits = {opcode: m.count(opcode, "hits") for opcode in ("open", "flush", "release")}
        for _ in range(3):
            with open(m / "f", "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                assert file.read(4096) == _bytes(4096)
        for opcode, before in hits.items():
            eventually(lambda opcode=opcode, before=before: m.count(opcode, "hits") == before + 3)
        assert not _asked_for_opens(m)


def test_directory_is_listed_without_the_daemon(mountpoint: Path) -> None:
    with _lazy(mountpoint) as m:
        names = _filled(m, 300)
        assert {*os.listdir(m.path)} == names
        m.log()
        for _ in range(2):
            assert {*os.listdir(m.path)} == names
        assert not _asked_for_opens(m)


def test_rest_of_a_listing_comes_with_a_handle_of_its_own(mountpoint: Path) -> None:
    """The first reader stops, so what FUSE keeps is only the begin of the listing."""
    with _lazy(mountpoint) as m:
        names = _filled(m, 2000)
        with os.scandir(m.path) as entries:
            next(entries)
        m.log()
        with m.answered("opendir"):
            entries = os.scandir(m.path)
        with entries:
            assert {entry.name for entry in entries} == names
        asked = m.asked()
        assert asked.count("opendir") == 1
        assert "readdirplus" in asked or "readdir" in asked
        eventually(lambda: not m.call("handles"))


def test_handle_is_asked_for_by_the_first_request_that_needs_it(mountpoint: Path) -> None:
    with _lazy(mountpoint) as m:
        with _opened(m) as fd:
            m.log()
            for part in (1, 2):
                assert os.pread(fd, 4096, part * _PART) == _part(part)
            asked = [opcode for opcode in m.asked() if opcode in ("open", "read")]
            assert asked == ["open", "read", "read"]
            assert m.call("handles") == 1
        eventually(lambda: not m.call("handles"))


def test_late_open_is_counted(mountpoint: Path) -> None:
    with _lazy(mountpoint) as m, _opened(m) as fd:
        before = {name: m.count("open", name) for name in ("requests", "hits", "daemon")}
        os.pread(fd, 4096, _PART)
        new = {name: m.count("open", name) - count for name, count in before.items()}
        assert new == {"requests": 1, "hits": 0, "daemon": 1}


def test_late_open_that_fails_counts_as_an_error(mountpoint: Path) -> None:
    with _lazy(mountpoint) as m, _opened(m) as fd:
        before = m.count("open", "errors")
        m.call("deny", "open", os.getuid(), errno.EMFILE)
        m.log()
        assert _error_of_a_read(fd) in _PAGE_ERRORS
        m.call("deny", "open", os.getuid(), 0)
        assert m.count("open", "errors") == before + m.asked().count("open") > before


def test_read_ahead_and_maps_of_a_file_that_the_daemon_has_not_opened(mountpoint: Path) -> None:
    """READs of the background find the handle, too."""
    with _lazy(mountpoint) as m:
        for _ in range(2):
            with m.answered("open"):
                fd = os.open(m / "f", os.O_RDONLY)
            with open(fd, "rb") as file:
                assert file.read() == _bytes(4 * _PART)
            eventually(lambda: not m.call("handles"))
            m.connection.invalidate()
            os.close(os.open(m / "f", os.O_RDONLY))
            eventually(lambda: not m.call("handles"))


def test_several_readers_ask_for_one_handle(mountpoint: Path) -> None:
    with _lazy(mountpoint) as m, _opened(m) as fd, m.threads(3) as pool:
        m.log()
        m.hold("open", "after")
        reads = [pool.submit(os.pread, fd, 4096, part * _PART) for part in (1, 2, 3)]
        m.wait_held()
        m.release()
        for part, read in enumerate(reads, 1):
            assert read.result() == _part(part)
        assert m.asked().count("open") == 1


def test_reader_that_is_killed_during_the_late_open_leaves_the_file_readable(
    mountpoint: Path,
) -> None:
    """As in open(2) on plain FUSE, it ends when the daemon has answered."""
    with _lazy(mountpoint) as m, _opened(m) as fd:
        m.hold("open", "before")
        with running(os.pread, fd, 4096, _PART) as reader:
            m.wait_held()
            os.kill(reader.pid, signal.SIGKILL)
            m.release()
        assert os.pread(fd, 4096, _PART) == _part(1)


def test_reader_gets_an_error_if_the_late_open_fails(mountpoint: Path) -> None:
    with _lazy(mountpoint) as m, _opened(m) as fd:
        m.call("deny", "open", os.getuid(), errno.EMFILE)
        assert _error_of_a_read(fd) in _PAGE_ERRORS
        m.call("deny", "open", os.getuid(), 0)
        assert os.pread(fd, 4096, _PART) == _part(1)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC])
def test_file_that_may_change_is_opened_by_the_daemon(mountpoint: Path, flags: int) -> None:
    with _lazy(mountpoint) as m:
        for _ in range(3):
            with m.passed("open"):
                os.close(os.open(m / "f", flags))


@pytest.mark.parametrize("mode", ["strict", "ttl", "cto"])
def test_other_modes_ask_the_daemon(mountpoint: Path, mode: str) -> None:
    timeouts = {"entry_timeout": 3600.0, "attr_timeout": 3600.0}
    with mounted(mountpoint, consistency=mode, declare=("lazy_open",), **timeouts) as m:
        m.model.create("f", b"data")
        for _ in range(3):
            with m.passed("open"):
                assert Path(m / "f").read_bytes() == b"data"
            with m.passed("opendir"):
                assert os.listdir(m.path) == ["f"]


def test_file_is_opened_by_the_daemon_after_a_change_of_rights(mountpoint: Path) -> None:
    with _lazy(mountpoint) as m:
        os.chmod(m / "f", 0o600)
        with m.passed("open"):
            os.close(os.open(m / "f", os.O_RDONLY))
        with _opened(m):
            pass


def test_nothing_is_known_before_the_first_open(mountpoint: Path) -> None:
    """Nor does an open that has failed tell anything."""
    with _lazy(mountpoint) as m:
        m.model.create("g", b"data")
        m.call("deny", "open", os.getuid(), errno.EIO)
        for _ in range(2):
            with m.passed("open"), pytest.raises(OSError, match=os.strerror(errno.EIO)):
                os.open(m / "g", os.O_RDONLY)
        m.call("deny", "open", os.getuid(), 0)
        with m.passed("open"):
            os.close(os.open(m / "g", os.O_RDONLY))
        with _opened(m, "g"):
            pass


def test_declaration_that_ends_leaves_open_files_readable(mountpoint: Path) -> None:
    with _lazy(mountpoint) as m, _opened(m) as fd:
        m.connection.lazy_open = False
        with m.passed("open"):
            assert os.pread(fd, 4096, _PART) == _part(1)
        with m.passed("open"):
            os.close(os.open(m / "f", os.O_RDONLY))


def test_file_that_was_removed_is_read_with_a_handle_that_is_asked_for_late(
    mountpoint: Path,
) -> None:
    """The daemon keeps an inode until it is forgotten."""
    with _lazy(mountpoint) as m, _opened(m) as fd:
        os.unlink(m / "f")
        assert os.pread(fd, 4096, _PART) == _part(1)
        assert force_stat(fd).st_size == 4 * _PART


@pytest.mark.parametrize("keeps", [{"locks": True}, {"generic_flags": FUSE_FLOCK_LOCKS}])
def test_daemon_that_keeps_locks_is_sent_each_open(mountpoint: Path, keeps: dict[str, Any]) -> None:
    """A close ends the locks that its process has by other opens."""
    with _lazy(mountpoint, **keeps) as m, open(m / "f", "rb+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        m.log()
        os.close(os.open(m / "f", os.O_RDONLY))
        assert {"open", "flush"} <= set(m.asked())


@pytest.mark.parametrize("declare", [("no_open",), ("no_open", "lazy_open")])
def test_kept_handle_is_not_replaced_by_the_nodeid(
    mountpoint: Path, declare: tuple[str, ...]
) -> None:
    with mounted(mountpoint, consistency="exclusive", declare=declare, first_handle=3 << 62) as m:
        m.model.create("f", b"data")
        for _ in range(3):
            with m.passed("open"):
                assert Path(m / "f").read_bytes() == b"data"
            with m.passed("opendir"):
                assert os.listdir(m.path) == ["f"]


@pytest.mark.parametrize("flags", [FOPEN_DIRECT_IO, FOPEN_NONSEEKABLE, FOPEN_STREAM])
def test_handle_with_other_flags_is_returned(mountpoint: Path, flags: int) -> None:
    with _lazy(mountpoint) as m, _opened(m) as fd:
        m.call("set_open_flags", flags)
        for _ in range(2):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                os.pread(fd, 4096, _PART)
            assert not m.call("handles")
        m.call("set_open_flags", 0)
        assert os.pread(fd, 4096, _PART) == _part(1)


def test_slow_late_open_does_not_hold_up_other_files(mountpoint: Path) -> None:
    with _lazy(mountpoint) as m:
        m.model.create("g", _bytes(4 * _PART))
        os.close(os.open(m / "g", os.O_RDONLY))
        fds = []
        for name in ("f", "g"):
            with m.answered("open"):
                fds.append(os.open(m / name, os.O_RDONLY))
        with m.threads(1) as pool:
            m.hold("open", "before")
            slow = pool.submit(os.pread, fds[0], 4096, _PART)
            m.wait_held()
            assert os.pread(fds[1], 4096, _PART) == _part(1)
            assert not slow.done()
            m.release()
            assert slow.result() == _part(1)
        for fd in fds:
            os.close(fd)


def test_direct_read_gets_the_error_of_the_late_open(mountpoint: Path) -> None:
    """With FUSE_ASYNC_DIO, direct reads are requests of the background."""
    flags = os.O_RDONLY | os.O_DIRECT
    with _lazy(mountpoint, generic_flags=FUSE_ASYNC_DIO) as m, mmap.mmap(-1, 4096) as buffer:
        os.close(os.open(m / "f", flags))
        with m.answered("open"):
            fd = os.open(m / "f", flags)
        m.call("deny", "open", os.getuid(), errno.EMFILE)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            os.preadv(fd, [buffer], _PART)
        m.call("deny", "open", os.getuid(), 0)
        assert os.preadv(fd, [buffer], _PART) == 4096
        assert buffer[:] == _part(1)
        os.close(fd)


def test_abort_ends_readers_that_wait_for_a_late_open(mountpoint: Path) -> None:
    mount = Mount(mountpoint, Options(), ("default_permissions",))
    try:
        mount.connection.consistency = "exclusive"
        mount.connection.lazy_open = True
        mount.attach()
        mount.model.create("f", _bytes(4 * _PART))
        os.close(os.open(mount / "f", os.O_RDONLY))
        with mount.answered("open"):
            fd = os.open(mount / "f", os.O_RDONLY)
        mount.hold("open", "before")
        with running(os.pread, fd, 4096, _PART) as first, running(os.pread, fd, 9, 0) as second:
            mount.wait_held()
            mount.connection.abort()
            for call in (first, second):
                # FUSE tries a page again that was not read ahead, or fails with EIO.
                with pytest.raises(OSError) as raised:
                    call.result()
                assert raised.value.errno in (errno.ECONNABORTED, errno.ENOTCONN, errno.EIO)
        os.close(fd)
    finally:
        mount.close()


def test_daemon_with_stable_nodeids_is_sent_each_open(mountpoint: Path) -> None:
    """Its successors may get the first daemon's handles."""
    declare = ("stable_nodeids", "lazy_open")
    with mounted(mountpoint, consistency="exclusive", declare=declare) as m:
        m.model.create("f", b"data")
        for _ in range(3):
            with m.passed("open"):
                assert Path(m / "f").read_bytes() == b"data"


def test_successor_opens_what_no_daemon_has_opened(mountpoint: Path) -> None:
    with renumbering(mountpoint, consistency="exclusive") as m:
        m.connection.lazy_open = True
        m.attach()
        m.model.create("f", _bytes(4 * _PART))
        os.close(os.open(m / "f", os.O_RDONLY))
        with _opened(m) as fd:
            m.replace()
            m.log()
            assert os.pread(fd, 4096, _PART) == _part(1)
            asked = m.asked()
            assert [name for name in asked if name in ("open", "read")] == ["open", "read"]
        eventually(lambda: not m.call("handles"))
