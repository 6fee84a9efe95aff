# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test ``efuse run``: the kernel answers requests for unmodified daemons."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efuse.control import Connection, connections, find
from tests.commands import EFUSE
from tests.guest.support.forked import Beside, efuse, run_efuse
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
    return connection.counts(f"stats/{opcode}")["hits"]


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


def test_output_ends_with_the_command_although_the_daemon_goes_on(tmp_path: Path) -> None:
    """As in ``x=$(efuse run ...)``: nothing that it leaves behind holds its streams."""
    source, mountpoint = _directories(tmp_path, "source", "mnt")
    words = [*EFUSE, "run", "--require", "--", "bindfs", str(source), str(mountpoint)]
    try:
        subprocess.run(words, capture_output=True, check=True, timeout=120)
        assert os.path.ismount(mountpoint)
    finally:
        subprocess.run(["umount", mountpoint], check=True)


def test_run_of_a_command_that_mounts_nothing_fails() -> None:
    assert "mounted nothing" in run_efuse("run", "--", "true", status=1).stderr


def _directories(parent: Path, *names: str) -> list[Path]:
    for name in names:
        (parent / name).mkdir()
    return [parent / name for name in names]


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


_INNER = ["mount", "--consistency", "strict", "passthrough"]


def test_run_leaves_the_mounts_of_other_efuse_programs_to_them(tmp_path: Path) -> None:
    source, mountpoint = _directories(tmp_path, "source", "mnt")
    promises = ["--require", "--consistency", "exclusive", "--promise", "caller_independent"]
    # Do not use exec: the end of the shell shows that the inner command has ended.
    command = ["sh", "-c", '"$@" || exit 9', "sh", *EFUSE, *_INNER, str(source), str(mountpoint)]
    run_efuse("run", *promises, "--", *command)
    try:
        connection = Connection(find(mountpoint).connection)
        assert connection.state == "attached"
        assert (connection.consistency, connection.caller_independent) == ("strict", False)
    finally:
        subprocess.run(["umount", mountpoint], check=True)


_MOUNTS_LATER = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
while os.path.exists(sys.argv[3]):
    time.sleep(0.01)
os.execvp("bindfs", ["bindfs", sys.argv[1], sys.argv[2]])
"""


def test_mount_that_a_background_process_makes_later_is_accelerated(
    tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """The command has returned by then. The process that it has left carries the mount out."""
    source, first, later = _directories(tmp_path, "source", "first", "later")
    waits = tmp_path / "waits"
    waits.touch()
    script = 'bindfs "$0" "$1" && exec python3 -c "$4" "$0" "$2" "$3"'
    words = ["sh", "-c", script, source, first, later, waits, _MOUNTS_LATER]
    run_efuse("run", "--require", "--", *map(str, words))
    try:
        assert Connection(find(first).connection).state == "attached"
        waits.unlink()
        eventually(lambda: later.stat().st_dev != tmp_path.stat().st_dev, what="the later mount")
        assert Connection(find(later).connection).state == "attached"
        subprocess.run(["umount", later], check=True)
    finally:
        subprocess.run(["umount", first], check=True)


def test_signal_to_the_command_ends_the_daemon_and_its_mount(
    tmp_path: Path, eventually: Callable[..., object]
) -> None:
    source, mountpoint = _directories(tmp_path, "source", "mnt")
    process = Beside("run", "--", "bindfs", "-f", source, mountpoint)
    eventually(lambda: os.path.ismount(mountpoint), what="the mount")
    status, _, errors = process.end(signal.SIGTERM)
    assert f"{mountpoint}: eFuse, connection " in errors
    assert status == 0  # libfuse ends by the signal as by an unmount
    assert not os.path.ismount(mountpoint)


def test_second_supervisor_within_the_first_is_refused(tmp_path: Path) -> None:
    source, mountpoint = _directories(tmp_path, "source", "mnt")
    words = [*EFUSE, "run", "--", "bindfs", str(source), str(mountpoint)]
    done = run_efuse("run", "--", *words, status=1)
    assert "bindfs cannot be started: its mounts cannot be carried out: " in done.stderr
    assert "run it outside the other program" in done.stderr
    assert not os.path.ismount(mountpoint)
