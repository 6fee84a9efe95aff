# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through of mounts that are not in the daemon's table of mounts."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from pyfuse3 import RequestContext

import efuse
from efuse.fs.passthrough import mounts as mounts_module
from efuse.fs.passthrough.syscalls import status
from tests.host.mounting import bind

SHORT = {"entry_timeout": 0.0, "attr_timeout": 0.0}
_CTX = cast(RequestContext, None)
_TWO_NAMES = """
mount --bind "$1/below" "$1/one"
mount --bind "$1/below" "$1/two"
echo
read -r end
"""


class Elsewhere:
    """A mount namespace in which ``below`` of a directory is bound to ``one`` and ``two``."""

    def __init__(self, source: Path) -> None:
        for name in ("below", "one", "two"):
            (source / name).mkdir()
        (source / "below" / "f").write_bytes(b"data")
        words = ["unshare", "-m", "--propagation", "private", "sh", "-ec", _TWO_NAMES, "sh", source]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "\n"
        self._source = source

    @property
    def source(self) -> Path:
        """Path of the directory in that namespace."""
        return Path(f"/proc/{self._process.pid}/root{self._source}")

    def remount(self, name: str, options: str) -> None:
        """Change the options of the mount *name* in that namespace."""
        inside = ["nsenter", "-t", str(self._process.pid), "-m"]
        words = [*inside, "mount", "-o", f"remount,bind,{options}", str(self._source / name)]
        subprocess.run(words, check=True)

    def end(self) -> None:
        """End the process of the namespace. Its mounts stay while they are in use."""
        self._process.communicate("\n", timeout=60)


@pytest.fixture
def elsewhere(source: Path) -> Iterator[Elsewhere]:
    made = Elsewhere(source)
    yield made
    made.end()


@pytest.mark.parametrize("first", ["one", "two"])
def test_mount_of_another_namespace_has_its_current_rights(
    served: Any, elsewhere: Elsewhere, first: str
) -> None:
    path = served(arguments={"source": str(elsewhere.source), **SHORT}).path
    (path / first / "f").stat()
    elsewhere.remount("two", "ro")
    with pytest.raises(OSError, match="Read-only") as failure:
        (path / "two" / "f").write_bytes(b"refused")
    assert failure.value.errno == errno.EROFS
    (path / "one" / "f").write_bytes(b"written")
    assert (path / "two" / "f").read_bytes() == b"written"
    elsewhere.remount("two", "rw")
    (path / "two" / "f").write_bytes(b"again")
    assert (path / "one" / "f").read_bytes() == b"again"
    assert (elsewhere.source / "below" / "f").read_bytes() == b"again"


def test_rights_of_a_mount_are_found_without_statfs(
    served: Any, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FUSE daemon, for example, need not implement statfs."""

    def fails(fd: int) -> os.statvfs_result:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(mounts_module.os, "fstatvfs", fails)
    for name, options in (("one", "rw"), ("two", "ro"), ("two", "rw")):
        elsewhere.remount(name, options)
        fd = os.open(elsewhere.source / name / "f", os.O_PATH)
        is_read_only = mounts_module._rights_at(fd) == mounts_module._READ_ONLY
        os.close(fd)
        assert is_read_only is (options == "ro")


@contextlib.contextmanager
def _without_root() -> Iterator[None]:
    """Act as a user who may write no file of root."""
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def _no_figures(fd: int) -> os.statvfs_result:
    raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))


@pytest.mark.parametrize("options", ["ro", "rw"])
def test_mount_keeps_its_rights_while_the_kernel_does_not_tell_them(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    """The permissions of a file are checked before its mount. A daemon that has ended: ENOTCONN."""
    elsewhere.remount("one", options)
    fd = os.open(elsewhere.source / "one" / "f", os.O_PATH)
    table = mounts_module.LowerMounts()
    mount = table.of(fd, status(fd))
    before = mount.rights
    assert before == (mounts_module._READ_ONLY if options == "ro" else mounts_module._WRITABLE)
    monkeypatch.setattr(mounts_module.os, "fstatvfs", _no_figures)
    with _without_root():
        table.follow()
    assert mount.rights == before
    assert table.take_altered() == set()
    table.close()
    os.close(fd)


def test_mount_whose_rights_the_kernel_does_not_tell_is_not_used(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file would be written by a read-only mount, or have two nodes that both cache its pages."""
    fd = os.open(elsewhere.source / "one" / "f", os.O_PATH)
    table = mounts_module.LowerMounts()
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(mounts_module.os, "fstatvfs", _no_figures)
        with _without_root(), pytest.raises(PermissionError):
            table.of(fd, status(fd))
    assert len(os.listdir("/proc/self/fd")) == before
    assert table.of(fd, status(fd)).rights == mounts_module._WRITABLE
    table.close()
    os.close(fd)


def test_source_in_another_namespace_gets_no_promise(
    elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    fs = efuse.Passthrough(elsewhere.source, consistency="exclusive")
    assert fs.efuse_options.consistency == "ttl"
    assert not fs.efuse_options.nodeid_per_file
    assert not fs.efuse_options.no_open
    assert "is missing from the mount table" in caplog.text
    fs.close()


def test_lazily_unmounted_mount_in_use_still_ends_promises(
    source: Path, place: Path, mount: Callable[..., None]
) -> None:
    """A directory of the mount already has an inode, and gets another one by the other mount."""
    kept, sub, other = place / "kept", source / "sub", source / "other"
    for directory in (kept, sub, other):
        directory.mkdir()
    mount("-t", "tmpfs", "tmpfs", kept)
    (kept / "d").mkdir()
    bind(mount, kept, sub)
    fs = efuse.Passthrough(source, consistency="exclusive")

    async def look_up() -> None:
        for name in (b"sub", b"a0"):
            await fs.lookup(1, name, _CTX)
        subprocess.run(["umount", "--lazy", sub], check=True)
        await fs.lookup(1, b"a1", _CTX)
        assert fs.efuse_options.consistency == "exclusive"
        bind(mount, kept, other)
        await fs.lookup(1, b"other", _CTX)
        assert fs.efuse_options.consistency == "ttl"

    trio.run(look_up)
    fs.close()


def test_lazily_unmounted_source_keeps_its_promises(
    source: Path, mount: Callable[..., None]
) -> None:
    """No mount can appear below it any more, and its path leads to another directory."""
    sub = source / "sub"
    sub.mkdir()
    mount("-t", "tmpfs", "tmpfs", sub)
    (sub / "f").touch()
    fs = efuse.Passthrough(sub, consistency="exclusive")

    async def look_up() -> None:
        subprocess.run(["umount", "--lazy", sub], check=True)
        await fs.lookup(1, b"f", _CTX)
        assert fs.efuse_options.consistency == "exclusive"
        assert fs.efuse_options.nodeid_per_file

    trio.run(look_up)
    fs.close()


def test_mount_table_that_changes_while_read_is_read_again(
    source: Path, mount: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount that is missing in the table would end all promises."""
    sub = source / "sub"
    sub.mkdir()
    table = mounts_module.LowerMounts()
    read = mounts_module.read_table

    def changes(mountinfo: int) -> Any:
        found = read(mountinfo)
        if not os.path.ismount(sub):
            mount("-t", "tmpfs", "tmpfs", sub)
        return found

    monkeypatch.setattr(mounts_module, "read_table", changes)
    table.read()
    assert str(sub) in [row.mountpoint for row in table.table]
    table.close()
