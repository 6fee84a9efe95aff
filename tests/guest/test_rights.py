# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test what users without root are refused by devices, sysfs, BPF and namespaces."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
from pathlib import Path

import pytest

from efuse import locations
from efuse.fs.mountpoint import unmount
from tests import sysfs_document
from tests.commands import AS_NOBODY, EFUSE, run_output
from tests.guest.support import channel as by_hand
from tests.guest.support.backing_files import make
from tests.guest.support.csd_device import Device
from tests.guest.support.daemons import Call, as_user, fails, mounted
from tests.guest.support.manual_daemon import ManualDaemon

USER = 1000
_EXAMPLES = locations.data("bpf_programs") / "examples"
_NEW_NAMESPACES = 0x10000000 | 0x00020000  # of users and of mounts
_MAP, _UNMAP = 0x4030E540, 0x4020E541
_libc = ctypes.CDLL(None, use_errno=True)


def test_daemons_device_is_for_root_alone() -> None:
    found = os.stat("/dev/efuse")
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o600, 0, 0)
    for how in (os.O_RDONLY, os.O_RDWR):
        fails(errno.EACCES, as_user, USER, os.open, "/dev/efuse", how)


def test_disk_of_a_storage_device_is_for_root_alone(device: Device) -> None:
    assert stat.S_IMODE(device.path.stat().st_mode) == 0o600
    fails(errno.EACCES, as_user, USER, os.open, device.path, os.O_RDONLY)


def test_sysfs_is_read_but_not_changed_by_users(mountpoint: Path) -> None:
    with mounted(mountpoint) as m:
        for file in sysfs_document.files("A connection").values():
            path = m.connection.path / file.name
            assert path.stat().st_uid == 0
            fails(errno.EACCES, as_user, USER, os.open, path, os.O_WRONLY)
            if file.mode & 0o004:
                as_user(USER, path.read_bytes)
            else:
                fails(errno.EACCES, as_user, USER, os.open, path, os.O_RDONLY)
        as_user(USER, (m.connection.path / "stats/lookup").read_bytes)


@pytest.mark.usefixtures("reachable")
def test_other_users_get_nothing_of_a_mount_without_allow_other(mountpoint: Path) -> None:
    """Neither the daemon nor the kernel answers them, whatever it knows."""
    with mounted(mountpoint, allow_other=False, entry_timeout=600.0, attr_timeout=600.0) as m:
        m.model.create("f", b"data", stat.S_IFREG | 0o644)
        for _ in range(2):
            os.stat(m / "f")
            os.listdir(m.path)
            assert Path(m / "f").read_bytes() == b"data"
        m.log()
        for function, path in ((os.stat, m / "f"), (os.listdir, m.path), (os.stat, m / "none")):
            fails(errno.EACCES, as_user, USER, function, path)
        fails(errno.EACCES, as_user, USER, os.open, m / "f", os.O_RDONLY)
        assert m.asked() == []
        assert Path(m / "f").read_bytes() == b"data"


def _mount_for_user(target: Path) -> int:
    """Mount for the user USER, without a daemon. Return the descriptor of the device."""
    fd = os.open("/dev/efuse", os.O_RDWR | os.O_NONBLOCK)
    options = f"fd={fd},rootmode=40000,user_id={USER},group_id={USER}".encode()
    assert not _libc.mount(b"x", os.fsencode(target), b"efuse", 0, options)
    return fd


@pytest.mark.usefixtures("reachable")
def test_root_gets_nothing_of_a_users_mount_without_allow_other(mountpoint: Path) -> None:
    fd = _mount_for_user(mountpoint)
    try:
        fails(errno.EACCES, os.listdir, mountpoint)
        fails(errno.EACCES, os.stat, mountpoint / "f")
    finally:
        os.close(fd)
        unmount(str(mountpoint))


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


@pytest.mark.usefixtures("reachable")
def test_control_files_belong_to_the_user_of_the_mount(mountpoint: Path) -> None:
    """They are those of FUSE, in a file system of the type efusectl, which root has to mount."""
    control = mountpoint.parent / "control"
    control.mkdir()
    modes = {"waiting": 0o400, "abort": 0o200, "max_background": 0o600}
    modes["congestion_threshold"] = 0o600
    fd = _mount_for_user(mountpoint)
    assert not _libc.mount(b"x", os.fsencode(control), b"efusectl", 0, None)
    try:
        rows = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
        (own,) = (control / row[2].removeprefix("0:") for row in rows if row[4] == str(mountpoint))
        for path, mode in ((own, 0o500), *((own / name, mode) for name, mode in modes.items())):
            found = path.stat()
            assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (mode, USER, USER)
        assert sorted(as_user(USER, os.listdir, own)) == sorted(modes)
        fails(errno.EACCES, as_user, USER + 1, os.listdir, own)
        for name in modes:
            fails(errno.EACCES, as_user, USER + 1, os.open, own / name, os.O_RDONLY)
            fails(errno.EACCES, as_user, USER + 1, os.open, own / name, os.O_WRONLY)
        as_user(USER, (own / "waiting").read_bytes)
        limit = Path("/sys/module/efuse/parameters/max_user_bgreq").read_text()
        more = str(int(limit) + 1).encode()
        fails(errno.EINVAL, as_user, USER, _write, own / "max_background", more)
        _write(own / "max_background", more)
        assert as_user(USER, (own / "max_background").read_bytes).split() == [more]
        as_user(USER, _write, own / "abort", b"1")
        fails(errno.ENODEV, os.read, fd, 1 << 17)
    finally:
        _libc.umount2(os.fsencode(control), 0)
        os.close(fd)
        unmount(str(mountpoint))


def test_unmap_without_privilege_fails(mountpoint: Path) -> None:
    with mounted(mountpoint) as m:
        make(m, "f", b"data")
        device = m.device()
        whole = struct.pack("=4Q", m.call("nodeid", "f"), 0, 0, 0)
        fails(errno.EPERM, as_user, USER, fcntl.ioctl, device, _UNMAP, whole)
        fcntl.ioctl(device, _UNMAP, whole)
        os.close(device)


def test_channel_needs_no_privilege(manual_daemon: ManualDaemon) -> None:
    """A daemon that has given up its privileges keeps its descriptor."""
    fd = by_hand.tied(manual_daemon.fd)
    as_user(USER, by_hand.make, fd, 0)
    os.close(fd)


def _mount_elsewhere(target: Path, is_own: bool) -> tuple[int, int]:
    """Mount in a user namespace of its own; return the errnos of mount(2) and of mapping a file.

    :param is_own: whether the device is opened in that namespace.
    """
    fd = os.open("/dev/efuse", os.O_RDWR)
    assert not _libc.unshare(_NEW_NAMESPACES), os.strerror(ctypes.get_errno())
    Path("/proc/self/uid_map").write_text("0 0 1")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text("0 0 1")
    if is_own:
        fd = os.open("/dev/efuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    if _libc.mount(b"x", os.fsencode(target), b"efuse", 0, options):
        return ctypes.get_errno(), 0
    lower = os.open("/etc/passwd", os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _MAP, struct.pack("=5QiI", 1, 0, 4096, 0, 0, lower, 0))
    except OSError as error:
        return 0, error.errno or -1
    return 0, 0


def test_device_is_mounted_only_in_the_user_namespace_of_its_opener(mountpoint: Path) -> None:
    """Root of another namespace mounts by a device of its own, and still maps no files."""
    assert Call(_mount_elsewhere, mountpoint, False).result() == (errno.EINVAL, 0)
    assert Call(_mount_elsewhere, mountpoint, True).result() == (0, errno.EPERM)


@pytest.mark.parametrize("words", [("prog", "attach"), ("maps", "list")])
def test_programs_and_maps_are_refused_to_users(mountpoint: Path, words: tuple[str, ...]) -> None:
    with mounted(mountpoint) as m:
        output = run_output(*AS_NOBODY, *EFUSE, *words, str(m.connection.id), status=3)
        assert "EPERM" in output
        assert m.connection.ops == "efuse"


@pytest.mark.usefixtures("reachable")
def test_refused_lookup_keeps_no_user_from_a_name_in_a_dentry(mountpoint: Path) -> None:
    """A handler refuses requests. FUSE needs none for what it keeps; it always asks for OPEN."""
    text = (_EXAMPLES / "deny_uid.c").read_text()
    with mounted(mountpoint, attach=False, entry_timeout=600.0, attr_timeout=600.0) as m:
        m.model.create("f", b"data", stat.S_IFREG | 0o644)
        os.stat(m / "f")
        denied = m.attach(handlers={"lookup": text, "open": text}).maps["denied"]
        denied[USER] = 0
        refused = m.count("lookup", "refused")
        assert as_user(USER, os.stat, m / "f").st_size == 4
        assert m.count("lookup", "refused") == refused
        fails(errno.EACCES, as_user, USER, os.open, m / "f", os.O_RDONLY)
