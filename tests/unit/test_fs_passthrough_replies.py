# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through's replies tell what was done below: no less, and nothing that came later."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from pyfuse3 import EntryAttributes, FUSEError, RequestContext, SetattrFields

import efuse
from efuse.fs.passthrough import inodes as inodes_module
from efuse.fs.passthrough import mounts as mounts_module
from efuse.fs.passthrough.inodes import Inodes, Node
from efuse.fs.passthrough.syscalls import Status, status

_EXT4, _NFS = 0xEF53, 0x6969
_ROOT = 1
_CTX = cast(RequestContext, None)


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[efuse.Passthrough]:
    made = efuse.Passthrough(tmp_path)
    # As with default_permissions, with which the kernel checks permissions.
    made.efuse.mount_options = frozenset({"default_permissions"})
    umask = os.umask(0)
    made.init()
    os.umask(umask)
    yield made
    made.close()


def opened(fs: efuse.Passthrough, name: bytes, flags: int) -> int:
    """Open an existing file; return its handle."""

    async def find() -> int:
        found = await fs.lookup(_ROOT, name, _CTX)
        return int((await fs.open(found.st_ino, flags, _CTX)).fh)

    return trio.run(find)


class Calls:
    """A system call that is limited at first, and then fails if *then* is given."""

    def __init__(self, real: Any, *, most: int, then: OSError | None = None) -> None:
        self._real = real
        self._most = most
        self._then = then
        self.number = 0

    def __call__(self, fd: int, what: Any, at: int) -> Any:
        self.number += 1
        if self._then is not None and self.number > 1:
            raise self._then
        what = min(what, self._most) if isinstance(what, int) else bytes(what)[: self._most]
        return self._real(fd, what, at)


def test_write_returns_the_part_that_was_written_before_an_error(
    fs: efuse.Passthrough, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller continues after that part. After an error it would write the part again."""
    (tmp_path / "f").touch()
    fh = opened(fs, b"f", os.O_RDWR)
    full = OSError(errno.ENOSPC, "full")
    monkeypatch.setattr(os, "pwrite", Calls(os.pwrite, most=5, then=full))
    assert trio.run(fs.write, fh, 0, b"0123456789") == 5
    assert (tmp_path / "f").read_bytes() == b"01234"


@pytest.mark.parametrize("kept", ["by the writeback cache", "by a map"])
def test_write_back_that_is_partly_refused_fails(
    fs: efuse.Passthrough, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """Otherwise the rest would be lost: fsync(2) reports only errors."""
    (tmp_path / "f").write_bytes(b"" if kept == "by the writeback cache" else b"x" * 10)
    fs.enable_writeback_cache = kept == "by the writeback cache"
    fh = opened(fs, b"f", os.O_RDWR)
    full = OSError(errno.ENOSPC, "full")
    monkeypatch.setattr(os, "pwrite", Calls(os.pwrite, most=5, then=full))
    with pytest.raises(FUSEError) as caught:
        trio.run(fs.write, fh, 0, b"0123456789")
    assert caught.value.errno == errno.ENOSPC


def test_write_that_stops_early_goes_on(
    fs: efuse.Passthrough, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").touch()
    fh = opened(fs, b"f", os.O_RDWR)
    calls = Calls(os.pwrite, most=3)
    monkeypatch.setattr(os, "pwrite", calls)
    assert trio.run(fs.write, fh, 0, b"0123456789") == 10
    assert (tmp_path / "f").read_bytes() == b"0123456789"
    assert calls.number == 4


def test_read_that_stops_early_is_not_the_end_of_the_file(
    fs: efuse.Passthrough, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    fh = opened(fs, b"f", os.O_RDONLY)
    monkeypatch.setattr(os, "pread", Calls(os.pread, most=3))
    assert trio.run(fs.read, fh, 100, 100) == b""
    assert trio.run(fs.read, fh, 1, 100) == b"123456789"
    assert trio.run(fs.read, fh, 0, 7) == b"0123456"


def test_read_that_fails_later_on_fails(
    fs: efuse.Passthrough, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would take a short reply for the end of the file."""
    (tmp_path / "f").write_bytes(b"0123456789")
    fh = opened(fs, b"f", os.O_RDONLY)
    broken = OSError(errno.EIO, "broken")
    monkeypatch.setattr(os, "pread", Calls(os.pread, most=3, then=broken))
    with pytest.raises(FUSEError) as caught:
        trio.run(fs.read, fh, 0, 10)
    assert caught.value.errno == errno.EIO


def test_open_succeeds_if_the_name_vanishes_after_the_open(
    fs: efuse.Passthrough, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open file must be closed later. On FUSE its name may have vanished below meanwhile."""
    (tmp_path / "f").touch()
    find, open_file = Inodes.fd, os.open
    is_open = False

    def opens(path: Any, flags: int, *more: Any, **where: Any) -> int:
        nonlocal is_open
        is_open |= not flags & os.O_PATH
        return open_file(path, flags, *more, **where)

    def finds(table: Inodes, node: Node) -> int:
        if is_open and node is not table.root:
            raise OSError(errno.ESTALE, "gone")
        return find(table, node)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "open", opens)
    monkeypatch.setattr(Inodes, "fd", finds)

    async def act() -> None:
        found = await fs.lookup(_ROOT, b"f", _CTX)
        told = await fs.open(found.st_ino, os.O_WRONLY, _CTX)
        await fs.release(told.fh)
        await fs.forget([(found.st_ino, 1)])

    trio.run(act)
    assert len(os.listdir("/proc/self/fd")) == before


def test_umask_of_the_caller_is_reset_after_each_request(
    fs: efuse.Passthrough, tmp_path: Path
) -> None:
    ctx = cast(RequestContext, SimpleNamespace(uid=0, gid=0, pid=0, umask=0o027))

    async def make() -> None:
        await fs.mkdir(_ROOT, b"d", 0o777, ctx)
        await fs.mknod(_ROOT, b"n", 0o666 | stat.S_IFREG, 0, ctx)
        await fs.create(_ROOT, b"f", 0o666, os.O_WRONLY, ctx)
        with pytest.raises(FUSEError):
            await fs.mkdir(_ROOT, b"d", 0o777, ctx)

    before = os.umask(0o051)
    try:
        trio.run(make)
        assert os.umask(0o051) == 0o051
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "dnf"}
    assert modes == {"d": 0o750, "n": 0o640, "f": 0o640}


@pytest.fixture
def by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower file system that finds files by name, as bindfs and sshfs do."""
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        found = real(fd)
        ours = os.readlink(f"/proc/self/fd/{fd}").startswith(str(tmp_path))
        if ours and not found.st_nlink:
            raise FileNotFoundError(errno.ENOENT, "gone")
        return found

    def handle(self: Inodes, node: Node) -> Any:
        raise FileNotFoundError(errno.ENOENT, "gone")

    monkeypatch.setattr(os, "fstat", fstat)
    monkeypatch.setattr(Inodes, "_handle", handle)


@pytest.mark.usefixtures("by_name")
def test_unlink_and_rename_succeed_if_the_inode_cannot_be_found_afterwards(
    fs: efuse.Passthrough, tmp_path: Path
) -> None:
    async def remove() -> None:
        for name in (b"f", b"g"):
            await fs.lookup(_ROOT, name, _CTX)
        await fs.lookup(_ROOT, b"d", _CTX)
        await fs.unlink(_ROOT, b"f", _CTX)
        await fs.rename(_ROOT, b"h", _ROOT, b"g", 0, _CTX)
        await fs.rmdir(_ROOT, b"d", _CTX)

    for name in "fgh":
        (tmp_path / name).touch()
    (tmp_path / "d").mkdir()
    trio.run(remove)
    assert os.listdir(tmp_path) == ["g"]


def test_link_succeeds_if_the_new_name_vanishes_immediately(
    fs: efuse.Passthrough, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").touch()
    real = os.link

    def link(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        (tmp_path / "g").unlink()

    async def make() -> int:
        found = await fs.lookup(_ROOT, b"f", _CTX)
        monkeypatch.setattr(os, "link", link)
        again = await fs.link(found.st_ino, _ROOT, b"g", _CTX)
        return int(again.st_ino == found.st_ino)

    assert trio.run(make)
    assert list(fs.lookups.values()) == [2]


_CALLER = cast(RequestContext, SimpleNamespace(uid=0, gid=0, pid=0, umask=0o022))


def _mkdir(fs: efuse.Passthrough) -> Any:
    return fs.mkdir(_ROOT, b"x", 0o777, _CALLER)


def _mknod(fs: efuse.Passthrough) -> Any:
    return fs.mknod(_ROOT, b"x", 0o666 | stat.S_IFIFO, 0, _CALLER)


def _symlink(fs: efuse.Passthrough) -> Any:
    return fs.symlink(_ROOT, b"x", b"target", _CALLER)


MADE = {
    "mkdir": (_mkdir, stat.S_IFDIR | 0o755),
    "mknod": (_mknod, stat.S_IFIFO | 0o644),
    "symlink": (_symlink, stat.S_IFLNK | 0o777),
}


def _gone(path: Path) -> None:
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def _another(path: Path) -> None:
    _gone(path)
    path.write_bytes(b"a file")


def _no_descriptors(path: Path) -> OSError:
    return OSError(errno.EMFILE, "none left")


@pytest.mark.parametrize("then", [_gone, _another, _no_descriptors])
@pytest.mark.parametrize("name", MADE)
def test_mkdir_mknod_and_symlink_succeed_if_the_name_changes_immediately(
    fs: efuse.Passthrough, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, then: Any
) -> None:
    real, look = getattr(os, name), os.open
    make, mode = MADE[name]
    failure: list[OSError] = []

    def act(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        error = then(tmp_path / "x")
        if error is not None:
            failure.append(error)

    def find(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == b"x" and failure:
            raise failure.pop()
        return look(path, *args, **kwargs)

    async def use() -> None:
        monkeypatch.setattr(os, name, act)
        monkeypatch.setattr(os, "open", find)
        made = await make(fs)
        assert made.st_mode == mode
        assert made.entry_timeout == made.attr_timeout == 0
        assert fs.lookups == {made.st_ino: 1}
        # Requests for the file fail, and the kernel forgets it like any other inode.
        for request in (fs.getattr(made.st_ino), fs.lookup(made.st_ino, b"y", _CALLER)):
            with pytest.raises(FUSEError) as caught:
                await request
            assert caught.value.errno == errno.ESTALE
        await fs.forget([(made.st_ino, 1)])
        assert fs.lookups == {}

    trio.run(use)


def test_create_succeeds_if_the_file_vanishes_immediately(
    fs: efuse.Passthrough, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handle can still read and write the file."""

    def adopt(self: Inodes, parent: Node, name: bytes, fd: int) -> tuple[Node, None]:
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "gone")

    async def use() -> None:
        monkeypatch.setattr(Inodes, "adopt", adopt)
        info, made = await fs.create(_ROOT, b"x", 0o666, os.O_RDWR, _CALLER)
        assert made.st_mode == stat.S_IFREG | 0o644
        assert made.entry_timeout == made.attr_timeout == 0
        assert await fs.write(info.fh, 0, b"data") == 4
        assert await fs.read(info.fh, 0, 10) == b"data"
        await fs.release(info.fh)

    trio.run(use)


def test_no_file_is_created_without_descriptors_for_it(
    fs: efuse.Passthrough, tmp_path: Path
) -> None:
    """A file needs two descriptors: one for its handle, and one for its inode."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def use() -> None:
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
        try:
            with pytest.raises(FUSEError) as caught:
                await fs.create(_ROOT, b"x", 0o666, os.O_RDWR, _CALLER)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert caught.value.errno == errno.EMFILE

    trio.run(use)
    assert not (tmp_path / "x").exists()


def _set(**values: int) -> tuple[EntryAttributes, SetattrFields]:
    attributes = EntryAttributes()
    for name, value in values.items():
        setattr(attributes, name, value)
    names = {name.split("_")[1] for name in values}
    fields = {f"update_{name}": name in names for name in SETTABLE}
    return attributes, cast(SetattrFields, SimpleNamespace(**fields))


SETTABLE = ("mode", "uid", "gid", "size", "atime", "mtime")


@pytest.mark.parametrize(
    "values",
    [
        {"st_mode": 0o640},
        {"st_uid": 7, "st_gid": 8},
        {"st_size": 3},
        {"st_atime_ns": 5 * 10**9, "st_mtime_ns": 6 * 10**9},
    ],
)
def test_setattr_succeeds_if_the_inode_cannot_be_found_afterwards(
    fs: efuse.Passthrough, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, int]
) -> None:
    """A lower file system that finds files by name may no longer find this one."""
    (tmp_path / "f").write_bytes(b"0123456789")
    (tmp_path / "f").chmod(0o600)
    real, answers = os.fstat, iter(range(1))

    def fstat(fd: int) -> os.stat_result:
        if next(answers, None) is None:
            raise FileNotFoundError(errno.ENOENT, "gone")
        return real(fd)

    async def use() -> None:
        found = await fs.lookup(_ROOT, b"f", _CTX)
        monkeypatch.setattr(os, "fstat", fstat)
        now = await fs.setattr(found.st_ino, *_set(**values), None, _CALLER)
        monkeypatch.setattr(os, "fstat", real)
        assert now.entry_timeout == now.attr_timeout == 0
        truth = await fs.getattr(found.st_ino)
        for name in ("st_mode", "st_uid", "st_gid", "st_size", "st_mtime_ns"):
            if name != "st_mtime_ns" or name in values:
                assert getattr(now, name) == getattr(truth, name), name

    trio.run(use)


def test_link_succeeds_if_the_inode_cannot_be_found_afterwards(
    fs: efuse.Passthrough, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        if (tmp_path / "g").exists():
            raise FileNotFoundError(errno.ENOENT, "gone")
        return real(fd)

    async def use() -> None:
        found = await fs.lookup(_ROOT, b"f", _CTX)
        monkeypatch.setattr(os, "fstat", fstat)
        linked = await fs.link(found.st_ino, _ROOT, b"g", _CTX)
        monkeypatch.setattr(os, "fstat", real)
        assert (linked.st_ino, linked.st_size) == (found.st_ino, 10)
        assert linked.attr_timeout == 0
        assert fs.lookups == {found.st_ino: 2}

    trio.run(use)


@pytest.mark.parametrize("change", ["set", "remove"])
@pytest.mark.parametrize(
    ("name", "as_caller"),
    [
        (b"system.nfs4_acl", True),
        (b"system.posix_acl_access", True),
        (b"user.x", False),
    ],
)
def test_special_xattrs_of_the_lower_file_system_are_set_as_the_caller(
    fs: efuse.Passthrough,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: bytes,
    as_caller: bool,
    change: str,
) -> None:
    """The kernel does not check who may change them, so the lower file system must."""
    callers: list[object] = []

    def of(ctx: object) -> contextlib.AbstractContextManager[None]:
        callers.append(ctx)
        return contextlib.nullcontext()

    monkeypatch.setattr(fs._credentials, "of", of)
    monkeypatch.setattr(os, "setxattr", lambda *_: None)
    monkeypatch.setattr(os, "removexattr", lambda *_: None)
    ctx = cast(RequestContext, object())

    async def ask() -> None:
        if change == "set":
            await fs.setxattr(_ROOT, name, b"x", ctx)
        else:
            await fs.removexattr(_ROOT, name, ctx)

    trio.run(ask)
    assert callers == ([ctx] if as_caller else [])


@pytest.mark.parametrize("kind", [_EXT4, _NFS])
def test_lookup_replies_with_the_attributes_of_stat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: kind)
    (tmp_path / "file").write_bytes(bytes(5000))
    (tmp_path / "file").chmod(0o4751)
    os.utime(tmp_path / "file", ns=(-1, 2**32 * 10**9 + 7))
    os.link(tmp_path / "file", tmp_path / "link")
    (tmp_path / "directory").mkdir()
    (tmp_path / "symlink").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    if os.geteuid() == 0:
        os.mknod(tmp_path / "device", stat.S_IFCHR | 0o600, os.makedev(300, 70000))
        os.chown(tmp_path / "device", 2**31 + 1, 2**31 + 2)
    made = efuse.Passthrough(tmp_path, attr_timeout=7)
    made.efuse.mount_options = frozenset({"default_permissions"})
    made.init()
    for name in os.listdir(tmp_path):
        found = trio.run(made.lookup, _ROOT, os.fsencode(name), _CTX)
        again = trio.run(made.getattr, found.st_ino, _CTX)
        expected = (tmp_path / name).lstat()
        for field in (
            *("mode", "nlink", "uid", "gid", "rdev", "size", "blksize", "blocks"),
            *("atime_ns", "mtime_ns", "ctime_ns"),
        ):
            value = getattr(expected, f"st_{field}")
            assert getattr(found, f"st_{field}") == value, (name, field)
            assert getattr(again, f"st_{field}") == value, (name, field)
        assert (found.st_ino, found.generation) == (again.st_ino, again.generation)
        assert found.attr_timeout == 7
    made.close()


def test_lookup_on_a_local_file_system_asks_for_attributes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: _EXT4)
    (tmp_path / "file").write_bytes(b"data")
    made = efuse.Passthrough(tmp_path)
    made.efuse.mount_options = frozenset({"default_permissions"})
    made.init()

    def fails(fd: int) -> os.stat_result:
        raise AssertionError("the attributes are asked for again")

    async def use() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", fails)
            for _ in range(2):  # the second time, the inode is known
                assert (await made.lookup(_ROOT, b"file", _CTX)).st_size == 4

    trio.run(use)
    made.close()


def test_lookup_on_a_network_file_system_replies_with_no_cached_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may have changed the file. Only stat(2), unlike the first look, asks it."""
    monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: _NFS)
    (tmp_path / "file").write_bytes(b"data")
    made = efuse.Passthrough(tmp_path)
    made.efuse.mount_options = frozenset({"default_permissions"})
    made.init()

    def cached(fd: int, *, fresh: bool = False) -> Status:
        found = status(fd, fresh=fresh)
        found.raw.raw = bytes(len(found.raw))
        return found

    monkeypatch.setattr(inodes_module, "status", cached)
    for _ in range(2):
        found = trio.run(made.lookup, _ROOT, b"file", _CTX)
        assert (found.st_size, stat.S_IFMT(found.st_mode)) == (4, stat.S_IFREG)
    made.close()
