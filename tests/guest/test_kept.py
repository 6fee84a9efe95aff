# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test `exclusive` mode: each change voids all that FUSE itself keeps of the file or directory."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import (
    Call,
    Mount,
    as_user,
    birth_stat,
    eventually,
    fails,
    force_stat,
    mounted,
)
from tests.guest.support.file_data import BLOCK, fill, pread_direct

_NOBODY = 41001
_OLD, _NEW = b"old" * 100, b"NEW!" * 200


def _behind(m: Mount) -> None:
    """Change a file and its directory at the daemon, unseen by the kernel."""
    m.model.put("d/f", _NEW)
    m.model.create("d/new")
    m.model.remove("d/gone")


def _told_of_file(m: Mount) -> None:
    _behind(m)
    m.call("inval_inode", "d/f")


def _told_of_names(m: Mount) -> None:
    _behind(m)
    m.call("inval_entry", "d", b"new")
    m.call("inval_entry", "d", b"gone")


def _told_by_sysfs(m: Mount) -> None:
    _behind(m)
    m.connection.invalidate()


def _during(opcode: str, act: Callable[[int], object]) -> Callable[[Mount], None]:
    """Return a change that the daemon makes while it handles a request of *opcode*."""

    def change(m: Mount) -> None:
        fd = m.files["f"] = os.open(m / "d/f", os.O_RDWR)
        os.pwrite(fd, _OLD[:1], 0)
        os.fstat(fd)
        m.hold(opcode, "before")
        call = Call(act, fd)
        m.wait_held()
        _behind(m)
        m.release()
        call.result()

    return change


_FILE = ("attributes",)
_CONTENT = ("attributes", "pages")
_NAMES = ("listing", "directory", "negative", "entry")
CHANGES: dict[str, tuple[Callable[[Mount], None], tuple[str, ...]]] = {
    "inval_inode": (_told_of_file, _CONTENT),
    "inval_entry": (_told_of_names, _NAMES),
    "sysfs": (_told_by_sysfs, (*_CONTENT, *_NAMES)),
    "ioctl": (_during("ioctl", lambda fd: fcntl.ioctl(fd, 0x7A01)), _CONTENT),
    "fsync": (_during("fsync", os.fsync), _FILE),
    "flush": (_during("flush", os.close), _FILE),
}


def _create(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _read(m: Mount) -> bytes:
    """Read the file. (open() would also send an IOCTL, to find out whether it is a terminal.)"""
    fd = os.open(m / "d/f", os.O_RDONLY)
    data = os.pread(fd, 4096, 0)
    os.close(fd)
    return data


def _check(m: Mount, kept: str) -> None:
    if kept == "attributes":
        assert os.stat(m / "d/f").st_size == len(_NEW)
    elif kept == "pages":
        assert _read(m) == _NEW
    elif kept == "listing":
        assert sorted(os.listdir(m / "d")) == ["f", "new"]
    elif kept == "directory":
        assert os.stat(m / "d").st_mtime_ns == m.call("inode", "d").mtime_ns
    elif kept == "negative":
        os.stat(m / "d/new")
    else:
        fails(errno.ENOENT, os.stat, m / "d/gone")


def _warm(m: Mount) -> None:
    os.stat(m / "d/f")
    assert _read(m) == _OLD
    os.listdir(m / "d")
    os.stat(m / "d")
    fails(errno.ENOENT, os.stat, m / "d/new")
    os.stat(m / "d/gone")


def _asked(m: Mount) -> list[int]:
    return [m.count(name, "daemon") for name in ("lookup", "getattr", "read", "readdir")]


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_voids_the_caches_of_fuse(mountpoint: Path, change: str) -> None:
    with mounted(
        mountpoint, consistency="exclusive", entry_timeout=0.0, attr_timeout=0.0, ioctl=(0, 0)
    ) as m:
        m.model.mkdir("d")
        m.model.create("d/f", _OLD)
        m.model.create("d/gone")
        _warm(m)
        _warm(m)
        asked = _asked(m)
        _warm(m)
        assert _asked(m) == asked, "nothing was kept"
        act, ended = CHANGES[change]
        act(m)
        for kept in ended:
            _check(m, kept)
        for fd in m.files.values():
            os.close(fd)


def test_reply_that_crosses_invalidate_is_not_kept(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive", entry_timeout=0.0, attr_timeout=0.0) as m:
        m.model.create("f", _OLD)
        fd = os.open(m / "f", os.O_RDWR)
        os.fstat(fd)
        m.hold("setattr", "after")
        call = Call(os.fchmod, fd, 0o600)
        m.wait_held()
        m.model.put("f", _NEW)
        m.connection.invalidate()
        m.release()
        call.result()
        assert os.fstat(fd).st_size == len(_NEW)
        os.close(fd)


def test_name_in_a_reply_that_crosses_invalidate_is_not_kept(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive", entry_timeout=0.0, attr_timeout=0.0) as m:
        fails(errno.ENOENT, os.stat, m / "d")
        m.hold("mkdir", "after")
        call = Call(os.mkdir, m / "d")
        m.wait_held()
        m.model.move("d", "moved")
        m.connection.invalidate()
        m.release()
        call.result()
        fails(errno.ENOENT, os.stat, m / "d")
        assert stat.S_ISDIR(os.stat(m / "moved").st_mode)


def test_void_listing_is_read_again_although_the_directory_has_its_old_times(
    mountpoint: Path,
) -> None:
    with mounted(mountpoint, consistency="exclusive", entry_timeout=0.0, attr_timeout=0.0) as m:
        m.model.mkdir("d")
        old = m.call("inode", "d")
        for _ in range(2):
            assert os.listdir(m / "d") == []
        m.log()
        assert os.listdir(m / "d") == []
        assert "readdir" not in m.asked()
        m.model.create("d/new")
        m.model.set_times("d", old.mtime_ns, old.ctime_ns)
        m.connection.invalidate()
        assert os.listdir(m / "d") == ["new"]


def _spliced(fd: int) -> bytes:
    """Read by splice(2), which does not go through read(2)."""
    with open(os.memfd_create("spliced"), "r+b") as there:
        os.sendfile(there.fileno(), fd, 0, 4096)
        return os.pread(there.fileno(), 4096, 0)


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("how", ["open", "read", "splice"])
def test_invalidate_voids_pages(mountpoint: Path, how: str, is_mapped: bool) -> None:
    """This includes pages that are mapped, and pages of another open file."""
    old, new = b"old " * 1024, b"NEW " * 1024
    with mounted(mountpoint, consistency="exclusive", entry_timeout=0.0, attr_timeout=0.0) as m:
        m.model.create("f", old)
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.pread(fd, 4096, 0) == old
        view = mmap.mmap(fd, 4096, prot=mmap.PROT_READ) if is_mapped else None
        assert view is None or view[:] == old
        m.model.put("f", new)
        m.connection.invalidate()
        if how == "open":
            with open(m / "f", "rb", buffering=0) as other:
                assert other.read(4096) == new
        else:
            assert (os.pread(fd, 4096, 0) if how == "read" else _spliced(fd)) == new
        if view:
            assert view[:] == new
            view.close()
        os.close(fd)


def _mode(path: str) -> int:
    return os.stat(path).st_mode & 0o777


def _open(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("default_permissions", [False, True])
def test_changes_by_another_name_are_seen(mountpoint: Path, default_permissions: bool) -> None:
    """A daemon that uses paths has a nodeid for each name, so their changes are not told apart."""
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("no_open", "no_flush"),
        default_permissions=default_permissions,
        entry_timeout=0.0,
        attr_timeout=0.0,
        nodeid_per_name=True,
        check_modes=True,
    ) as m:
        m.model.create("a", b"old")
        for _ in range(2):
            with open(m / "a", "rb", buffering=0) as file:
                assert file.read(100) == b"old"
            assert os.stat(m / "a").st_nlink == 1
            as_user(_NOBODY, _open, m / "a")
            fails(errno.ENODATA, os.getxattr, m / "a", "user.x")
        with m.answered("getxattr"):
            fails(errno.ENODATA, os.getxattr, m / "a", "user.x")
        os.link(m / "a", m / "b")
        for number in range(3):
            content = b"new" * (number + 1)
            with open(m / "b", "r+b", buffering=0) as file:
                file.write(content)
            os.chmod(m / "b", 0o600 if number % 2 else 0o640)
            os.setxattr(m / "b", "user.x", content)
            with open(m / "a", "rb", buffering=0) as file:
                assert file.read(100) == content
            assert os.stat(m / "a").st_size == len(content)
            assert os.stat(m / "a").st_nlink == 2
            assert _mode(m / "a") == _mode(m / "b")
            assert os.getxattr(m / "a", "user.x") == content
            fails(errno.EACCES, as_user, _NOBODY, _open, m / "a")
        os.unlink(m / "b")
        assert os.stat(m / "a").st_nlink == 1


@pytest.mark.parametrize("mode", ["ttl", "exclusive"])
def test_stores_by_a_map_of_a_passthrough_file_are_seen(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    """Such stores come without a request."""
    lower = lower / "f"
    lower.write_bytes(b"old " * 1024)
    with mounted(
        mountpoint,
        consistency=mode,
        entry_timeout=60.0,
        attr_timeout=60.0,
        passthrough=str(lower),
        passthrough_writers=True,
        path="cache",
    ) as m:
        m.model.create("f", b"old " * 1024)
        for _ in range(2):
            fd = os.open(m / "f", os.O_RDONLY)
            assert os.pread(fd, 4096, 0) == b"old " * 1024
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        fd = os.open(m / "f", os.O_RDONLY)
        with m.answered("read"):
            assert os.pread(fd, 4096, 0) == b"old " * 1024
        os.close(fd)
        for number in range(3):
            fd = os.open(m / "f", os.O_RDWR)
            with mmap.mmap(fd, 4096) as view:
                os.close(fd)
                view[:4] = b"%4d" % number
            fd = os.open(m / "f", os.O_RDONLY)
            assert os.pread(fd, 4, 0) == b"%4d" % number
            os.close(fd)
        m.drop()
        # The kernel has a new inode now, which is not mapped.
        fd = os.open(m / "f", os.O_RDONLY)
        os.pread(fd, 4096, 0)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with m.answered("read"):
            assert os.pread(fd, 4, 0) == b"   2"
        os.close(fd)


@pytest.mark.parametrize("source", ["extent", "cached block"])
@pytest.mark.parametrize("mode", ["ttl", "cto"])
def test_forced_stat_after_a_read_goes_to_the_daemon(
    mountpoint: Path, lower: Path, mode: str, source: str
) -> None:
    """The kernel answers the read, so FUSE has an old access time and asks for attributes."""
    with mounted(mountpoint, consistency=mode, entry_timeout=60.0, attr_timeout=60.0) as m:
        make(m, "f", fill("d", BLOCK))
        if source == "extent":
            whole(m, backing(lower, fill("d", BLOCK)))
        fd = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        pread_direct(fd, BLOCK, 0)
        for _ in range(2):
            os.fstat(fd)
            with m.answered("read"):
                assert pread_direct(fd, BLOCK, 0) == fill("d", BLOCK)
        with m.answered("getattr"):
            assert os.fstat(fd).st_size == BLOCK
        with m.answered("read"):
            assert pread_direct(fd, BLOCK, 0) == fill("d", BLOCK)
        m.model.put("f", fill("n", BLOCK + 100))
        with m.passed("getattr"):
            assert force_stat(fd).st_size == BLOCK + 100
        os.close(fd)


@pytest.mark.parametrize("crosses", [False, True])
def test_attributes_of_a_statx_are_void_after_a_change(mountpoint: Path, crosses: bool) -> None:
    """Without a change they are kept. The STATX is answered before the change, or crosses it."""
    with mounted(
        mountpoint, consistency="exclusive", statx=True, attr_timeout=60.0, ioctl=(0, 0)
    ) as m:
        make(m, "f", _OLD)
        fd = os.open(m / "f", os.O_RDONLY)
        m.connection.invalidate()
        with m.passed("statx"):
            birth_stat(fd)
        m.log()
        assert os.fstat(fd).st_size == len(_OLD)
        assert m.asked() == []
        m.hold("ioctl", "before")
        call = Call(fcntl.ioctl, fd, 0x7A01)
        m.wait_held()
        if crosses:
            m.connection.invalidate()
            birth_stat(fd)
        m.model.put("f", _NEW)
        m.release()
        call.result()
        assert os.fstat(fd).st_size == len(_NEW)
        os.close(fd)


def test_link_count_after_a_delayed_delete_notification_is_right(mountpoint: Path) -> None:
    """A DELETE waits for its directory, and then drops all links of a file that has another one."""
    with mounted(
        mountpoint, consistency="exclusive", declare=("nodeid_per_file",), attr_timeout=0.0
    ) as m:
        for path in ("d", "e"):
            m.model.mkdir(path)
        m.model.create("d/a", b"data")
        m.model.hard_link("d/a", "e/b")
        assert os.stat(m / "d/a").st_nlink == os.stat(m / "e/b").st_nlink == 2
        nodeid = m.call("nodeid", "d/a")
        m.hold("create", "before")
        busy = Call(_create, m / "d/new")
        m.wait_held()
        m.model.remove("d/a")
        m.begin("delete", "d", nodeid, b"a")
        eventually(lambda: os.stat(m / "e/b").st_nlink == 1)
        m.begin("release")
        m.ended(2)
        busy.result()
        for _ in range(2):
            assert os.stat(m / "e/b").st_nlink == 1


def test_statfs_after_the_last_release_goes_to_the_daemon(mountpoint: Path) -> None:
    """The daemon frees a file without a name at its last RELEASE, or at its FORGET."""
    with mounted(mountpoint, consistency="exclusive", attr_timeout=60.0, entry_timeout=60.0) as m:
        m.model.create("f", b"data")
        fd = os.open(m / "f", os.O_RDONLY)
        os.unlink(m / "f")
        os.statvfs(m.path)
        with m.answered("statfs"):
            os.statvfs(m.path)
        os.close(fd)
        eventually(lambda: not m.call("handles") and len(m.call("counts")) < 1)
        with m.passed("statfs", "stale"):
            os.statvfs(m.path)
