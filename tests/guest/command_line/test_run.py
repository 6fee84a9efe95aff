# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse run``: unmodified libfuse 2 and 3 daemons whose requests the kernel answers."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efuse.bench.programs import built
from efuse.control import Connection, connections, find
from tests.guest.forked import efuse, run_efuse

_TIMEOUTS = "entry_timeout=3600,attr_timeout=3600"


def _passthrough_ll(tmp: Path, source: Path) -> list[str]:
    return [str(built("passthrough_ll")), "-o", f"source={source},timeout=3600,cache=always"]


def _bindfs(tmp: Path, source: Path) -> list[str]:
    return ["bindfs", "-o", _TIMEOUTS, str(source)]


def _sshfs(tmp: Path, source: Path) -> list[str]:
    ssh = tmp / "ssh"
    ssh.write_text("#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n")
    ssh.chmod(0o755)
    options = f"ssh_command={ssh},dir_cache=no,{_TIMEOUTS}"
    return ["sshfs", "-o", options, f"here:{source}"]


@contextlib.contextmanager
def _mounted(command: list[str], mountpoint: Path) -> Iterator[Connection]:
    efuse("run", "--require", "--", *command, mountpoint)
    try:
        yield Connection(find(mountpoint).connection)
    finally:
        subprocess.run(["umount", mountpoint], check=True)


def _hits(connection: Connection, opcode: str) -> int:
    return int((connection.path / "stats" / opcode / "hits").read_text())


@pytest.mark.parametrize("daemon", [_passthrough_ll, _bindfs, _sshfs])
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


def test_run_of_something_else_says_so() -> None:
    assert "mounted nothing on eFuse" in run_efuse("run", "--", "true", status=1).stderr
