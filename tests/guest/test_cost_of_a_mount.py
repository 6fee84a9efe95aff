# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a mount costs on which nothing happens: files in sysfs, and memory of the kernel.

Memory is counted over many mounts, so that pages which are not full do not matter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from efuse.control import Connection, find
from efuse.fs.mountpoint import MountOptions, mount_efuse, unmount
from efuse.stats import read
from tests.guest.support import wire
from tests.guest.support.kernel_memory import used

MOUNTS = 32
KIB = 1024

IDLE_KIB = 100
"""Limit for a mount whose files in sysfs were not looked at."""

WATCHED_KIB = 200
"""Limit for a mount whose files were all looked at, and whose times are watched."""

FILES = 150
"""Limit for the files of a mount on two CPUs."""


@contextmanager
def idle(directory: Path, *, plain: bool) -> Iterator[None]:
    """Make mounts whose daemon has answered INIT, and nothing else was asked."""
    with ExitStack() as ends:
        for number in range(MOUNTS):
            point = directory / str(number)
            point.mkdir(parents=True)
            fd = mount_efuse(str(point), MountOptions.parse([]), plain=plain)
            ends.callback(unmount, str(point))
            ends.callback(os.close, fd)
            init = wire.parse(os.read(fd, 1 << 16))
            assert init.opcode == "init"
            os.write(fd, wire.reply(init.unique, 0, wire.init_out(0)))
        yield


def look_at_all(directory: Path) -> list[int]:
    """Look at all files in sysfs of mounts, and sample them. Return how many files each has."""
    found = []
    for number in range(MOUNTS):
        connection = Connection(find(directory / str(number)).connection)
        files = [path for path in connection.path.rglob("*") if path.is_file()]
        read(connection, timing=True)
        found.append(len(files))
    return found


@pytest.fixture
def used_up(tmp_path: Path) -> Iterator[None]:
    """Mounts that take the memory which earlier ones have left partly free."""
    with idle(tmp_path / "first", plain=False):
        yield


@pytest.mark.usefixtures("used_up")
def test_idle_mount_takes_few_files_and_little_memory(tmp_path: Path) -> None:
    before = used(reclaimable=False)
    with idle(tmp_path / "plain", plain=True):
        plain = used(reclaimable=False) - before
    before = used(reclaimable=False)
    with idle(tmp_path / "mounts", plain=False):
        unwatched = used(reclaimable=False) - before
        before_looking = used(reclaimable=True)
        files = look_at_all(tmp_path / "mounts")
        watched = unwatched + used(reclaimable=True) - before_looking
    kib = {
        name: taken / MOUNTS / KIB
        for name, taken in (("plain", plain), ("idle", unwatched), ("watched", watched))
    }
    print(f"a mount: {files[0]} files, KiB: {kib}")
    assert set(files) == {files[0]}
    assert 0 < kib["plain"] < kib["idle"] < kib["watched"]
    assert files[0] < FILES
    assert kib["idle"] < IDLE_KIB
    assert kib["watched"] < WATCHED_KIB
