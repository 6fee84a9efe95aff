# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test ``efuse run``: the kernel answers requests for unmodified libfuse 2 and 3 daemons."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse import bpf
from efuse.control import Connection, connections, find
from efuse.errors import MountError
from efuse.fs.mountpoint import MountOptions, mount_efuse
from efuse.fs.options import Options
from efuse.fs.preload import preload_library
from efuse.fs.run import start_daemon
from tests.commands import EFUSE
from tests.guest.support.forked import efuse, run_efuse
from tests.guest.support.unmodified_daemons import (
    bindfs_command,
    passthrough_ll_command,
    sshfs_command,
)


@contextlib.contextmanager
def _mounted(command: list[str], mountpoint: Path) -> Iterator[Connection]:
    efuse("run", "--require", "--", *command, mountpoint)
    try:
        yield Connection(find(mountpoint).connection)
    finally:
        subprocess.run(["umount", mountpoint], check=True)


def _hits(connection: Connection, opcode: str) -> int:
    return int((connection.path / "stats" / opcode / "hits").read_text())


@pytest.mark.parametrize("daemon", [passthrough_ll_command, bindfs_command, sshfs_command])
def test_run_accelerates_an_unmodified_daemon(
    daemon: Callable[[Path, Path], list[str]], tmp_path: Path, eventually: Callable[..., object]
) -> None:
    source, mountpoint = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    with _mounted(daemon(tmp_path, source), mountpoint) as connection:
        assert connection.state == "attached"
        (mountpoint / "f").write_bytes(b"through the daemon")
        assert (source / "f").read_bytes() == b"through the daemon"
        os.symlink("f", mountpoint / "link")
        for _ in range(20):
            assert (mountpoint / "link").stat().st_size == 18
            assert os.readlink(mountpoint / "link") == "f"
        assert _hits(connection, "readlink") >= 30, "the kernel answered nothing"
        with open(mountpoint / "f", "ab") as f:
            f.write(b", and more")
        assert (mountpoint / "f").stat().st_size == 28
        assert (mountpoint / "f").read_bytes() == b"through the daemon, and more"
        os.rename(mountpoint / "f", mountpoint / "g")
        assert sorted(os.listdir(mountpoint)) == ["g", "link"]
        assert not (mountpoint / "link").exists()
        os.unlink(mountpoint / "g")
        os.unlink(mountpoint / "link")
        assert os.listdir(source) == []
        number = connection.id
    eventually(lambda: number not in connections(), what="the connection to end")


def test_run_of_a_command_that_mounts_nothing_fails() -> None:
    assert "mounted nothing on eFuse" in run_efuse("run", "--", "true", status=1).stderr


def _directories(parent: Path, *names: str) -> list[Path]:
    for name in names:
        (parent / name).mkdir()
    return [parent / name for name in names]


def _is_mounted(mountpoint: Path) -> bool:
    return f" {mountpoint} " in Path("/proc/self/mountinfo").read_text()


def test_each_mount_of_a_command_is_accelerated(tmp_path: Path) -> None:
    source, one, other = _directories(tmp_path, "source", "one", "other")
    script = 'bindfs "$0" "$1" && bindfs "$0" "$2"'
    done = run_efuse("run", "--require", "--", "sh", "-c", script, source, one, other)
    try:
        for mountpoint in (one, other):
            assert f"{mountpoint}: eFuse, connection " in done.stderr
            assert Connection(find(mountpoint).connection).state == "attached"
    finally:
        subprocess.run(["umount", one, other], check=True)


_CLOSES = 'eval "exec ${EFUSE_REPORT_FD%%:*}>&-"; exec bindfs "$0" "$1"'


@pytest.mark.parametrize(
    "command", [["env", "-u", "EFUSE_REPORT_FD", "bindfs"], ["bash", "-c", _CLOSES]]
)
def test_run_accelerates_a_daemon_that_cannot_report_its_mount(
    tmp_path: Path, command: list[str]
) -> None:
    """The daemon has cleared its environment, or has closed descriptors that it does not know."""
    source, mountpoint = _directories(tmp_path, "source", "mnt")
    with _mounted([*command, str(source)], mountpoint) as connection:
        assert connection.state == "attached"


def _kernel_tells_whose_mount_it_is(mountpoint: Path) -> bool:
    """Return whether /proc shows to which mount an open device belongs (Linux 7.3, not 6.12)."""
    device = mount_efuse(str(mountpoint), MountOptions.parse(()))
    try:
        return "fuse_connection:" in Path(f"/proc/self/fdinfo/{device}").read_text()
    finally:
        os.close(device)
        subprocess.run(["umount", mountpoint], check=True)


def test_required_run_of_a_mount_that_may_be_another_daemons_fails(tmp_path: Path) -> None:
    """The command does not name the mount point, and no report names the mount."""
    source, mountpoint = _directories(tmp_path, "source", "mnt")
    is_told = _kernel_tells_whose_mount_it_is(mountpoint)
    script = tmp_path / "script"
    script.write_text(f"exec bindfs {source} {mountpoint}")
    words = ["env", "-u", "EFUSE_REPORT_FD", "sh", script]
    done = run_efuse("run", "--require", "--", *words, status=0 if is_told else 3)
    if is_told:
        assert Connection(find(mountpoint).connection).state == "attached"
        subprocess.run(["umount", mountpoint], check=True)
    else:
        assert f"{mountpoint} cannot be accelerated: it was not reported" in done.stderr
        assert not _is_mounted(mountpoint)


@pytest.mark.parametrize(
    "inner",
    [
        ["run", "--consistency", "strict", "--", "bindfs"],
        ["mount", "--consistency", "strict", "passthrough"],
    ],
)
def test_run_leaves_the_mounts_of_other_efuse_programs_to_them(
    tmp_path: Path, inner: list[str]
) -> None:
    source, mountpoint = _directories(tmp_path, "source", "mnt")
    promises = ["--require", "--consistency", "exclusive", "--promise", "caller_independent"]
    # Do not use exec: the end of the shell shows that the inner command has ended.
    command = ["sh", "-c", '"$@" || exit 9', "sh", *EFUSE, *inner, str(source), str(mountpoint)]
    run_efuse("run", *promises, "--", *command)
    try:
        connection = Connection(find(mountpoint).connection)
        assert connection.state == "attached"
        assert (connection.consistency, connection.caller_independent) == ("strict", False)
    finally:
        subprocess.run(["umount", mountpoint], check=True)


def test_run_of_a_daemon_that_mounts_by_fusermount3_unmounts_when_it_dies(
    tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """With auto_unmount, libfuse leaves unmounting to fusermount3, which waits for the daemon's
    end."""
    source, mountpoint = _directories(tmp_path, "source", "mnt")
    daemon = start_daemon(["bindfs", "-f", "-o", "auto_unmount", str(source), str(mountpoint)])
    daemon.attach(Options())
    try:
        assert Connection(daemon.connection).state == "attached"
    finally:
        daemon.close()
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
    eventually(lambda: not _is_mounted(mountpoint), what="fusermount3 to unmount it")


def test_promises_are_not_declared_to_a_later_mount_of_the_same_number(tmp_path: Path) -> None:
    source, mountpoint, later = _directories(tmp_path, "source", "mnt", "later")
    daemon = start_daemon(["bindfs", "-f", str(source), str(mountpoint)])
    subprocess.run(["umount", mountpoint], check=True)
    assert daemon.process.wait() == 0
    device = mount_efuse(str(later), MountOptions.parse(()))
    try:
        assert find(later).connection == daemon.connection
        with pytest.raises(MountError, match="was unmounted before the handlers were attached"):
            daemon.attach(Options(consistency="exclusive", caller_independent=True))
        daemon.unmount()
        connection = Connection(find(later).connection)
        assert connection.state == "plain"
        assert (connection.consistency, connection.caller_independent) == ("ttl", False)
    finally:
        os.close(device)
        subprocess.run(["umount", later], check=True)


@pytest.mark.parametrize("is_taken", [False, True])
def test_handlers_do_not_stay_on_a_later_mount_of_the_same_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    """The mount ends after its promises were declared and before the handlers are attached."""
    source, mountpoint, later = _directories(tmp_path, "source", "mnt", "later")
    daemon = start_daemon(["bindfs", "-f", str(source), str(mountpoint)])
    with contextlib.ExitStack() as stack:

        def attach(*args: Any, **kwargs: Any) -> bpf.Attachment:
            subprocess.run(["umount", mountpoint], check=True)
            if is_taken:
                device = mount_efuse(str(later), MountOptions.parse(()))
                stack.callback(lambda: subprocess.run(["umount", later], check=True))
                stack.callback(os.close, device)
                assert find(later).connection == daemon.connection
            return real(*args, **kwargs)

        real = bpf.attach
        monkeypatch.setattr(bpf, "attach", attach)
        with pytest.raises(MountError, match="was unmounted before the handlers were attached"):
            daemon.attach(Options(consistency="exclusive", caller_independent=True))
        assert not daemon.accelerated
        assert daemon.process.wait() == 0
        if is_taken:
            connection = Connection(find(later).connection)
            assert connection.state == "plain"
            assert (connection.consistency, connection.caller_independent) == ("ttl", False)


def test_required_run_of_a_mount_that_ends_before_it_is_accelerated_fails(tmp_path: Path) -> None:
    source, mountpoint = _directories(tmp_path, "source", "mnt")
    # The command itself unmounts again, before efuse can see the mount.
    script = 'kill -STOP "$PPID"; bindfs "$0" "$1" && umount "$1"; kill -CONT "$PPID"'
    done = run_efuse("run", "--require", "--", "sh", "-c", script, source, mountpoint, status=1)
    assert "was unmounted before the handlers were attached" in done.stderr
    assert "Traceback" not in done.stderr


_FUSEBLK = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("/dev/fuse", os.O_RDWR)
print(os.readlink(f"/proc/self/fd/{fd}"))
libc.mount(b"/no/such", os.fsencode(sys.argv[1]), b"fuseblk", 0, b"rootmode=40000,fd=%d" % fd)
print(os.readlink(f"/proc/self/fd/{fd}"), os.get_inheritable(fd))
"""


def test_shim_gives_fuseblk_the_device_of_plain_fuse(tmp_path: Path) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(preload_library())}
    words = [sys.executable, "-c", _FUSEBLK, tmp_path]
    output = subprocess.check_output(words, env=environment, text=True)
    assert output.splitlines() == ["/dev/efuse", "/dev/fuse False"]
