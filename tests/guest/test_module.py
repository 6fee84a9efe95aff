# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test the module next to the built-in FUSE: what it registers, and that it loads and unloads."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import efuse
from efuse.errors import ModuleBuildError
from efuse.module import check, live

_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def device() -> Iterator[int]:
    """Yield a descriptor of /dev/efuse."""
    descriptor = os.open("/dev/efuse", os.O_RDWR | os.O_CLOEXEC)
    yield descriptor
    os.close(descriptor)


def _mount(descriptor: int, target: Path) -> None:
    options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0".encode()
    result = _libc.mount(b"test", os.fsencode(target), b"efuse", 0, options)
    assert result == 0, os.strerror(ctypes.get_errno())


def test_device_is_a_character_device() -> None:
    assert stat.S_ISCHR(os.stat("/dev/efuse").st_mode)


def test_file_system_types_exist_next_to_fuse() -> None:
    types = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
    assert {"fuse", "fuseblk", "efuse", "efuseblk"} <= types


def test_version_in_sysfs_is_the_package_version() -> None:
    assert live.status().version == efuse.__version__


def test_btf_is_registered_and_merged(module_file: Path) -> None:
    assert Path("/sys/kernel/btf/efuse").stat().st_size > 0
    check.check(module_file, Path("/sys/kernel/btf/vmlinux"))


def test_status_of_the_loaded_module() -> None:
    status = live.status()
    assert status.loaded
    assert status.users == 0
    assert status.kernel == os.uname().release


def test_unused_module_is_unloaded_and_loaded(module_file: Path) -> None:
    live.unload()
    try:
        assert not live.loaded()
        assert not Path("/dev/efuse").exists()
        assert not Path("/sys/fs/efuse").exists()
    finally:
        live.load(module_file)
    assert live.loaded()
    assert Path("/dev/efuse").exists()


def test_unload_while_mounted_fails(device: int, mountpoint: Path) -> None:
    _mount(device, mountpoint)
    with pytest.raises(ModuleBuildError, match="in use"):
        live.unload()
    assert live.loaded()
    # The daemon never answers INIT, so the unmount has to be forced.
    subprocess.run(["umount", "--force", mountpoint], check=True, stdin=subprocess.DEVNULL)


def test_unload_while_the_device_is_open_fails(device: int) -> None:
    with pytest.raises(ModuleBuildError, match="in use"):
        live.unload()
    assert live.loaded()


def test_connection_appears_and_goes_with_its_mount(device: int, mountpoint: Path) -> None:
    connections = Path("/sys/fs/efuse/connections")
    before = {entry.name for entry in connections.iterdir()}
    _mount(device, mountpoint)
    new = {entry.name for entry in connections.iterdir()} - before
    minors = {
        fields[2].partition(":")[2]
        for fields in map(str.split, Path("/proc/self/mountinfo").read_text().splitlines())
        if fields[4] == str(mountpoint)
    }
    assert new == minors
    subprocess.run(["umount", "--force", mountpoint], check=True, stdin=subprocess.DEVNULL)
    assert {entry.name for entry in connections.iterdir()} == before
