# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mounts below a pass-through come, go, fail or hang while it serves."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from pyfuse3 import EntryAttributes, RequestContext, SetattrFields

import efuse
from efuse.fs.acceleration import Acceleration
from efuse.fs.passthrough import inodes as inodes_module
from efuse.fs.passthrough.watching import watch_table
from tests.host.mounting import bind, remount

_CTX = cast(RequestContext, None)


class Kernel:
    def __init__(self) -> None:
        self.voided = 0

    def withdraw(self, changes: Mapping[str, Any]) -> None:
        self.voided += 1


def test_change_of_the_mount_table_before_the_watcher_waits_is_not_lost(
    place: Path, mount: Callable[..., None]
) -> None:
    one, two = place / "one", place / "two"
    one.mkdir()
    two.mkdir()
    seen: list[bool] = []

    def changed() -> bool:
        seen.append(os.path.ismount(two))
        if os.path.ismount(one) and not seen[-1]:
            mount("-t", "tmpfs", "tmpfs", two)
        return True

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_table, changed)
            await trio.testing.wait_all_tasks_blocked()
            mount("-t", "tmpfs", "tmpfs", one)
            with trio.move_on_after(5):
                while not any(seen):
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert seen[-1], "the mount that came last was never looked at"


def test_names_are_void_after_a_mount_was_replaced_by_one_with_the_same_id(
    source: Path, mount: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sub = source / "sub"
    sub.mkdir()
    (sub / "covered").touch()
    mount("-t", "tmpfs", "tmpfs", sub)
    kernel = Kernel()
    fs = efuse.Passthrough(source, consistency="exclusive")
    fs.efuse.acceleration = cast(Acceleration, kernel)
    real = os.open

    def opens(path: Any, *arguments: Any, **named: Any) -> int:
        if path == b"sub":  # between the look at the table and the look at the name
            subprocess.run(["umount", sub], check=True)
        return real(path, *arguments, **named)

    async def main() -> None:
        fs.init()
        await trio.testing.wait_all_tasks_blocked()
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", opens)
            await fs.lookup(1, b"sub", _CTX)  # the kernel learns that it is the covered directory
        mount("-t", "tmpfs", "tmpfs", sub)
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert kernel.voided
        fs.close()

    trio.run(main)


def test_names_are_void_after_a_lazy_unmount(source: Path, mount: Callable[..., None]) -> None:
    """In exclusive the kernel would lead to the mount that has gone for ever."""
    sub = source / "sub"
    sub.mkdir()
    mount("-t", "tmpfs", "tmpfs", sub)
    kernel = Kernel()
    fs = efuse.Passthrough(source, consistency="exclusive")
    fs.efuse.acceleration = cast(Acceleration, kernel)

    async def main() -> None:
        fs.init()
        await fs.lookup(1, b"sub", _CTX)
        await trio.testing.wait_all_tasks_blocked()
        subprocess.run(["umount", "--lazy", sub], check=True)
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert kernel.voided
        fs.close()

    trio.run(main)


def _two_names(source: Path, mount: Callable[..., None]) -> None:
    for name in ("below", "one", "two"):
        (source / name).mkdir()
    (source / "below" / "f").write_bytes(b"data")
    bind(mount, source / "below", source / "one")
    bind(mount, source / "below", source / "two")


def test_statx_error_of_one_open_file_does_not_fail_other_requests(
    source: Path, mount: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """statx(2) of a bad inode of FUSE: EIO. An O_PATH copy of a removed file on NFS: ESTALE."""
    _two_names(source, mount)
    fs = efuse.Passthrough(source)
    real = inodes_module.status

    async def main() -> None:
        one = (await fs.lookup(1, b"one", _CTX)).st_ino
        await fs.lookup(1, b"two", _CTX)
        file = (await fs.lookup(one, b"f", _CTX)).st_ino
        fs._as_caller = lambda ctx: contextlib.nullcontext()
        opened = await fs.open(file, os.O_RDONLY, _CTX)
        bad = fs._files.opened(opened.fh)

        def status(fd: int, **named: Any) -> Any:
            if fd == bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(fd, **named)

        monkeypatch.setattr(inodes_module, "status", status)
        remount(source / "one", "ro")
        await fs.getattr(1)  # of the root, which is on another mount
        monkeypatch.setattr(inodes_module, "status", real)
        await fs.release(opened.fh)

    trio.run(main)
    fs.close()


def test_file_opened_in_the_kernel_is_truncated_after_its_mount_became_read_only(
    source: Path, mount: Callable[..., None]
) -> None:
    """As it is written: its handle says that it was opened for that."""
    _two_names(source, mount)
    fs = efuse.Passthrough(source)

    class Fields:
        update_size = True
        update_uid = update_gid = update_mode = update_atime = update_mtime = False

    async def main() -> None:
        fs._as_caller = lambda ctx: contextlib.nullcontext()
        one = (await fs.lookup(1, b"one", _CTX)).st_ino
        two = (await fs.lookup(1, b"two", _CTX)).st_ino
        file = (await fs.lookup(one, b"f", _CTX)).st_ino
        assert (await fs.lookup(two, b"f", _CTX)).st_ino == file
        remount(source / "one", "ro")
        assert await fs.write(file, 0, b"D") == 1
        assert fs._inodes.node(file).moved
        size = EntryAttributes()
        size.st_size = 1
        await fs.setattr(file, size, cast(SetattrFields, Fields), file, _CTX)

    trio.run(main)
    assert (source / "below" / "f").read_bytes() == b"D"
    fs.close()


@pytest.mark.parametrize("how", ["unlink", "rename"])
def test_change_of_names_is_made_in_its_directories_when_a_mount_changes_meanwhile(
    source: Path, mount: Callable[..., None], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Files that move to another mount get descriptors, and directories lose their descriptors."""
    _two_names(source, mount)
    names = [f"f{number}" for number in range(100)]
    for name in names:
        (source / "below" / name).touch()
    for directory in ("d", "e"):
        (source / directory).mkdir()
    (source / "d" / "x").write_bytes(b"moved")
    mount("--bind", source / "a0", source / "d" / "x")
    fs = efuse.Passthrough(source, descriptors=32)
    fs._as_caller = lambda ctx: contextlib.nullcontext()
    real = os.open

    def opens(path: Any, *arguments: Any, **named: Any) -> int:
        fd = real(path, *arguments, **named)
        if path == b"x":  # the lookup reads the table of mounts, because this mount is new
            subprocess.run(["umount", "--lazy", source / "d" / "x"], check=True)
            remount(source / "one", "ro")
        return fd

    async def main() -> None:
        one, two, d, e = [
            (await fs.lookup(1, name, _CTX)).st_ino for name in (b"one", b"two", b"d", b"e")
        ]
        for name in names:
            for directory in (one, two):
                await fs.lookup(directory, name.encode(), _CTX)
        monkeypatch.setattr(os, "open", opens)
        if how == "unlink":
            await fs.unlink(d, b"x", _CTX)
        else:
            await fs.rename(d, b"x", e, b"y", 0, _CTX)
        monkeypatch.undo()
        assert fs._inodes.node(d).fd < 0, "the directory should have lost its descriptor"

    trio.run(main)
    assert not (source / "d" / "x").exists()
    if how == "rename":
        assert (source / "e" / "y").read_bytes() == b"moved"
    fs.close()


_HANGING = """
import sys, trio, efuse, pyfuse3
class Hanging(efuse.Operations):
    async def getattr(self, inode, ctx=None):
        entry = pyfuse3.EntryAttributes()
        entry.st_ino, entry.st_mode = inode, 0o40755
        entry.entry_timeout = entry.attr_timeout = 3600
        return entry
    async def statfs(self, ctx):
        await trio.sleep_forever()
trio.run(efuse.serve, Hanging(), sys.argv[1])
"""
_PASSING = """
import subprocess, sys, trio, efuse
from pathlib import Path
source = Path(sys.argv[1])
async def main():
    fs = efuse.Passthrough(source)
    await fs.lookup(1, b"sub", None)
    await fs.getattr(1)
    subprocess.run(["umount", "--lazy", source / "sub"], check=True)
    await fs.getattr(1)
trio.run(main)
"""


def test_hung_mount_is_not_accessed_after_a_lazy_unmount(source: Path) -> None:
    """An operator unmounts a hung mount that way. The kernel may still know inodes on it."""
    sub = source / "sub"
    sub.mkdir()
    below = subprocess.Popen([sys.executable, "-c", _HANGING, sub])
    try:
        while not os.path.ismount(sub):
            assert below.poll() is None, "the file system below has ended"
            time.sleep(0.05)
        passing = subprocess.Popen([sys.executable, "-c", _PASSING, source])
        try:
            assert passing.wait(timeout=20) == 0
        finally:
            below.send_signal(signal.SIGKILL)  # else the other one cannot be killed
            below.wait()
            passing.kill()
            passing.wait()
    finally:
        below.kill()
        below.wait()
        subprocess.run(["umount", "--lazy", sub], check=False, stderr=subprocess.DEVNULL)
