# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through of a directory below which mounts appear while it is served."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from pyfuse3 import RequestContext

import efuse
from efuse.errors import ControlError
from efuse.fs.acceleration import Acceleration
from tests.host.mounting import bind, remount

_CTX = cast(RequestContext, None)


def _bring(how: str, place: Path, source: Path, mount: Callable[..., None]) -> None:
    """Make ``source/files`` appear as ``source/d/m``, in the way that *how* names."""
    if how == "mount":
        bind(mount, source / "files", source / "d" / "m")
    elif how == "move":
        subprocess.run(["mount", "--move", place / "d" / "m", source / "d" / "m"], check=True)
    else:
        (source / "d" / "m").rmdir()
        (source / "d").rmdir()
        (place / "d").rename(source / "d")  # the kernel reports no change of the table


@pytest.fixture(params=["mount", "move", "rename"])
def bring(
    request: pytest.FixtureRequest, place: Path, source: Path, mount: Callable[..., None]
) -> Iterator[Callable[[], None]]:
    """Make a mount appear below the source: ``bring()``."""
    for directory in (place / "d" / "m", source / "d" / "m", source / "files"):
        directory.mkdir(parents=True)
    (source / "files" / "f").write_bytes(b"before")
    if request.param != "mount":
        bind(mount, source / "files", place / "d" / "m")
    yield lambda: _bring(request.param, place, source, mount)
    subprocess.run(["umount", "--lazy", source / "d" / "m"], check=False)


def test_promises_end_at_the_first_inode_found_on_a_new_mount(
    source: Path, bring: Callable[[], None]
) -> None:
    fs = efuse.Passthrough(source, consistency="exclusive")
    bring()

    async def look_up() -> None:
        assert fs.efuse_options.consistency == "exclusive"
        directory = (await fs.lookup(1, b"d", _CTX)).st_ino
        await fs.lookup(directory, b"m", _CTX)
        assert fs.efuse_options.consistency == "ttl"
        assert not fs.efuse_options.nodeid_per_file

    trio.run(look_up)
    fs.close()


class Kernel:
    """Record the promises that the daemon takes back. The first *failures* attempts fail."""

    def __init__(self, failures: int = 0) -> None:
        self.believes: dict[str, Any] = {}
        self.failures = failures
        self.was_told = trio.Event()

    def withdraw(self, changes: Mapping[str, Any]) -> None:
        if self.failures:
            self.failures -= 1
            raise ControlError("cannot write it: Too many open files (EMFILE)")
        self.believes |= changes
        self.was_told.set()
        self.was_told = trio.Event()


def test_kernel_is_told_of_a_new_mount_without_any_request(
    source: Path, mount: Callable[..., None]
) -> None:
    """In exclusive mode the kernel may answer all requests by itself."""
    for name in ("files", "d", "again"):
        (source / name).mkdir()
    kernel = Kernel()
    fs = efuse.Passthrough(source, consistency="exclusive")
    fs.efuse.acceleration = cast(Acceleration, kernel)

    async def watch() -> None:
        fs.init()
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(60):
            told = kernel.was_told
            mount("-t", "tmpfs", "tmpfs", source / "d")
            await told.wait()
            assert kernel.believes == {}
            told = kernel.was_told
            bind(mount, source / "files", source / "again")
            await told.wait()
        assert kernel.believes == {"consistency": "ttl", "nodeid_per_file": False}
        fs.close()

    before = len(os.listdir("/proc/self/fd"))
    trio.run(watch)
    assert len(os.listdir("/proc/self/fd")) < before


@pytest.mark.parametrize("failures", [1, 2])
def test_kernel_is_told_of_a_new_mount_by_a_retry_if_the_first_attempt_fails(
    source: Path, mount: Callable[..., None], failures: int
) -> None:
    """The kernel reports a change of the table once, and in exclusive mode asks for nothing."""
    for name in ("files", "again"):
        (source / name).mkdir()
    kernel = Kernel(failures)
    fs = efuse.Passthrough(source, consistency="exclusive")
    fs.efuse.acceleration = cast(Acceleration, kernel)

    async def watch() -> None:
        fs.init()
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(20):
            told = kernel.was_told
            bind(mount, source / "files", source / "again")
            await told.wait()
        assert kernel.believes == {"consistency": "ttl", "nodeid_per_file": False}
        fs.close()

    trio.run(watch)


def test_kernel_is_told_of_a_remount_although_it_asks_for_nothing(
    source: Path, mount: Callable[..., None]
) -> None:
    """In exclusive mode it would open files of a mount that has become read-only for writing."""
    sub = source / "sub"
    sub.mkdir()
    mount("-t", "tmpfs", "tmpfs", sub)
    (sub / "f").touch()
    kernel = Kernel()
    fs = efuse.Passthrough(source, consistency="exclusive")
    fs.efuse.acceleration = cast(Acceleration, kernel)

    async def watch() -> None:
        fs.init()
        directory = (await fs.lookup(1, b"sub", _CTX)).st_ino
        node = fs._inodes.node((await fs.lookup(directory, b"f", _CTX)).st_ino)
        await trio.testing.wait_all_tasks_blocked()
        before = node.key[2]
        with trio.fail_after(20):
            told = kernel.was_told
            remount(sub, "ro")
            await told.wait()
        assert node.key[2] == node.mount.rights != before
        fs.close()

    trio.run(watch)


def test_new_mount_after_close_is_ignored(source: Path, mount: Callable[..., None]) -> None:
    (source / "d").mkdir()
    fs = efuse.Passthrough(source, consistency="exclusive")

    async def watch() -> None:
        fs.init()
        await trio.testing.wait_all_tasks_blocked()
        fs.close()
        await trio.testing.wait_all_tasks_blocked()
        mount("-t", "tmpfs", "tmpfs", source / "d")
        await trio.testing.wait_all_tasks_blocked()

    trio.run(watch)
