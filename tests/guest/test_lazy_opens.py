# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test files that the kernel opened, and whose daemon is asked for a handle when one is needed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.guest.support.daemons import Mount, eventually, force_stat, mounted, running
from tests.guest.support.succession import renumbering
from tests.guest.support.wire import FUSE_FLOCK_LOCKS

_OPENS = {"open", "flush", "release", "opendir", "releasedir", "readdir", "readdirplus"}
_PART = 128 << 10
_F_OFD_SETLK = 37


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
        names = {f"a name of some length, {number}" for number in range(300)}
        for name in names:
            m.model.create(name)
        m.connection.invalidate()
        assert {*os.listdir(m.path)} == {"f", *names}
        m.log()
        for _ in range(2):
            assert {*os.listdir(m.path)} == {"f", *names}
        assert not _asked_for_opens(m)


def test_rest_of_a_listing_comes_with_a_handle_of_its_own(mountpoint: Path) -> None:
    """The first reader stops, so what FUSE keeps is only the begin of the listing."""
    with _lazy(mountpoint) as m:
        names = {f"a name of some length, {number}" for number in range(2000)}
        for name in names:
            m.model.create(name)
        m.connection.invalidate()
        with os.scandir(m.path) as entries:
            next(entries)
        m.log()
        with m.answered("opendir"):
            entries = os.scandir(m.path)
        with entries:
            assert {entry.name for entry in entries} == {"f", *names}
        asked = m.asked()
        assert asked.count("opendir") == 1
        assert "readdirplus" in asked or "readdir" in asked
        eventually(lambda: not m.call("handles"))


def test_handle_is_asked_for_by_the_first_request_that_needs_it(mountpoint: Path) -> None:
    with _lazy(mountpoint) as m:
        with _opened(m) as fd:
            m.log()
            for part in (1, 2):
                assert os.pread(fd, 4096, part * _PART) == _bytes(4 * _PART)[part * _PART :][:4096]
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
            assert read.result() == _bytes(4 * _PART)[part * _PART :][:4096]
        assert m.asked().count("open") == 1


def test_reader_that_waits_for_the_late_open_can_be_killed(mountpoint: Path) -> None:
    with _lazy(mountpoint) as m, _opened(m) as fd:
        m.hold("open", "before")
        with running(os.pread, fd, 4096, _PART):
            m.wait_held()
        # The daemon has not answered; the next reader asks again.
        m.release()
        assert os.pread(fd, 4096, _PART) == _bytes(4 * _PART)[_PART:][:4096]


def test_error_of_the_late_open_is_the_error_of_the_request(mountpoint: Path) -> None:
    with _lazy(mountpoint) as m, _opened(m) as fd:
        m.call("deny", "open", os.getuid(), errno.EMFILE)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)) as raised:
            os.pread(fd, 4096, _PART)
        assert raised.value.errno == errno.EMFILE
        m.call("deny", "open", os.getuid(), 0)
        assert os.pread(fd, 4096, _PART) == _bytes(4 * _PART)[_PART:][:4096]


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
            assert os.pread(fd, 4096, _PART) == _bytes(4 * _PART)[_PART:][:4096]
        with m.passed("open"):
            os.close(os.open(m / "f", os.O_RDONLY))


def test_file_that_was_removed_is_read_with_a_handle_that_is_asked_for_late(
    mountpoint: Path,
) -> None:
    """The daemon keeps an inode until it is forgotten."""
    with _lazy(mountpoint) as m, _opened(m) as fd:
        os.unlink(m / "f")
        assert os.pread(fd, 4096, _PART) == _bytes(4 * _PART)[_PART:][:4096]
        assert force_stat(fd).st_size == 4 * _PART


def test_close_ends_the_locks_that_its_process_has_by_another_open(mountpoint: Path) -> None:
    """The daemon keeps the locks, so it needs the FLUSH."""
    with _lazy(mountpoint, locks=True) as m, open(m / "f", "rb+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        with _opened(m):
            m.log()
        assert "flush" in m.asked()


@pytest.mark.parametrize("lock", ["flock", "posix", "ofd"])
def test_lock_of_a_file_that_the_daemon_has_not_opened(mountpoint: Path, lock: str) -> None:
    answers: dict[str, Any] = {"locks": True, "generic_flags": FUSE_FLOCK_LOCKS}
    with _lazy(mountpoint, **answers) as m:
        with _opened(m) as fd:
            m.log()
            with contextlib.suppress(OSError):  # the daemon may not implement the request
                if lock == "flock":
                    fcntl.flock(fd, fcntl.LOCK_SH)
                elif lock == "posix":
                    fcntl.lockf(fd, fcntl.LOCK_SH)
                else:
                    range_ = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0)
                    fcntl.fcntl(fd, _F_OFD_SETLK, range_)
            assert m.asked()[0] == "open"
        eventually(lambda: "release" in m.asked())


def test_successor_opens_what_no_daemon_has_opened(mountpoint: Path) -> None:
    with renumbering(mountpoint, consistency="exclusive") as m:
        m.connection.lazy_open = True
        m.attach()
        m.model.create("f", _bytes(4 * _PART))
        os.close(os.open(m / "f", os.O_RDONLY))
        with _opened(m) as fd:
            m.replace()
            m.log()
            assert os.pread(fd, 4096, _PART) == _bytes(4 * _PART)[_PART:][:4096]
            asked = m.asked()
            assert [name for name in asked if name in ("open", "read")] == ["open", "read"]
        eventually(lambda: not m.call("handles"))
