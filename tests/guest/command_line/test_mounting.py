# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test mounts as an administrator makes and ends them: fstab, mount(8), signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efuse.control import Connection, connections, find
from tests.commands import EFUSE

_HELPERS = Path("/usr/sbin")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a directory with one file."""
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "f").write_bytes(b"data")
    return directory


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[None]:
    """Put mount.efuse where mount(8) looks for it, like docs/writing-a-file-system.md."""
    upper, work = tmp_path / "upper", tmp_path / "work"
    upper.mkdir()
    work.mkdir()
    script = upper / "mount.efuse"
    script.write_text(f"#!{sys.executable}\nfrom efuse.cli._mount_helper import main\nmain()\n")
    script.chmod(0o755)
    layers = f"lowerdir={_HELPERS},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", _HELPERS], check=True)
    yield
    subprocess.run(["umount", _HELPERS], check=True)


def _gone(mountpoint: Path, number: int) -> bool:
    return not os.path.ismount(mountpoint) and number not in connections()


def _answers(mountpoint: Path) -> Connection:
    """Check that the mount returns the right bytes, and that handlers answer."""
    connection = Connection(find(mountpoint).connection)
    assert connection.state == "attached"
    hits = connection.path / "stats" / "getxattr" / "hits"
    for _ in range(5):
        assert (mountpoint / "f").read_bytes() == b"data"
        with pytest.raises(OSError, match="No data"):
            os.getxattr(mountpoint / "f", "user.none")
    assert int(hits.read_text()) >= 4
    return connection


@pytest.mark.usefixtures("helper")
@pytest.mark.parametrize("how", ["fstab", "type"])
def test_mount_by_mount_8(
    how: str, source: Path, mountpoint: Path, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    options = "consistency=exclusive,allow_other"
    if how == "fstab":
        table = tmp_path / "fstab"
        table.write_text(f"{source} {mountpoint} efuse {options},noauto 0 0\n")
        subprocess.run(["mount", "--fstab", table, mountpoint], check=True)
    else:
        subprocess.run(["mount", "-t", "efuse", "-o", options, source, mountpoint], check=True)
    connection = _answers(mountpoint)
    assert connection.consistency == "exclusive"
    subprocess.run(["umount", mountpoint], check=True)
    eventually(lambda: _gone(mountpoint, connection.id), what="the mount to be gone")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_mount_in_the_background_ended_by_a_signal_loses_nothing(
    number: int, source: Path, mountpoint: Path, eventually: Callable[..., object]
) -> None:
    words = ["mount", "passthrough", source, mountpoint, "--require", "--json"]
    words += ["--consistency", "exclusive", "--arg", "writeback=True"]
    told = json.loads(subprocess.check_output([*EFUSE, *words]))
    connection = _answers(mountpoint)
    data = os.urandom(300_000)
    (mountpoint / "late").write_bytes(data)
    os.kill(told["pid"], number)
    eventually(lambda: _gone(mountpoint, connection.id), what="the mount to be gone")
    assert (source / "late").read_bytes() == data


def test_daemon_in_the_foreground_ended_by_a_signal(
    source: Path, mountpoint: Path, eventually: Callable[..., object]
) -> None:
    daemon = ["bindfs", "-f", "-o", "entry_timeout=3600,attr_timeout=3600", source, mountpoint]
    process = subprocess.Popen([*EFUSE, "run", "--require", "--", *daemon])
    try:
        eventually(lambda: os.path.ismount(mountpoint), what="the mount")
        connection = Connection(find(mountpoint).connection)
        eventually(lambda: connection.state == "attached", what="the handlers")
        _answers(mountpoint)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()
    eventually(lambda: _gone(mountpoint, connection.id), what="the mount to be gone")
