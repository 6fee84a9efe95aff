# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the daemon of a mount, from what /proc shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from efuse.control import daemons
from efuse.control.daemons import command_of, serving
from efuse.control.mounts import Mount


def _process(proc: Path, pid: int, *words: str, device: str, serves: int | None = None) -> None:
    process = proc / str(pid)
    for name in ("fd", "fdinfo", "work"):
        (process / name).mkdir(parents=True)
    (process / "fd/5").symlink_to(device)
    told = "" if serves is None else f"fuse_connection:\t{serves}\n"
    (process / "fdinfo/5").write_text(f"pos:\t0\n{told}")
    (process / "cmdline").write_text("".join(f"{word}\0" for word in words))
    (process / "cwd").symlink_to("/srv")


def _mount(mountpoint: str, fstype: str = "fuse.bindfs") -> Mount:
    return Mount(30, 20, 3, mountpoint, fstype, "source", "rw")


@pytest.mark.parametrize(("device", "found"), [("/dev/fuse", {"10"}), ("/dev/efuse", {"11"})])
def test_daemon_has_the_device_open(tmp_path: Path, device: str, found: set[str]) -> None:
    _process(tmp_path, 10, "a", device="/dev/fuse")
    _process(tmp_path, 11, "b", device="/dev/efuse")
    _process(tmp_path, 12, "c", device="/dev/null")
    assert {process.name for process in serving(3, device, proc=tmp_path)} == found


def test_daemon_of_another_connection_is_left_out(tmp_path: Path) -> None:
    _process(tmp_path, 10, "a", device="/dev/fuse", serves=3)
    _process(tmp_path, 11, "b", device="/dev/fuse", serves=4)
    assert [process.name for process in serving(3, "/dev/fuse", proc=tmp_path)] == ["10"]


@pytest.mark.parametrize("named", ["/srv/mnt", "mnt", "./mnt/"])
def test_command_names_the_mount_point(tmp_path: Path, named: str) -> None:
    _process(tmp_path, 10, "bindfs", "a", named, device="/dev/fuse")
    _process(tmp_path, 11, "bindfs", "a", "/srv/other", device="/dev/fuse")
    assert command_of(_mount("/srv/mnt"), proc=tmp_path) == ["bindfs", "a", named]


def test_command_is_not_guessed(tmp_path: Path) -> None:
    _process(tmp_path, 10, "one", "/srv/mnt", device="/dev/fuse")
    assert command_of(_mount("/srv/mnt", "efuse.bindfs"), proc=tmp_path) is None
    _process(tmp_path, 11, "two", "/srv/mnt", device="/dev/fuse")
    assert command_of(_mount("/srv/mnt"), proc=tmp_path) is None


def test_command_of_another_user_is_not_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user may have /dev/fuse open, and the mount point among the arguments."""
    mount = Mount(30, 20, 3, "/srv/mnt", "fuse.bindfs", "source", "rw,user_id=7,group_id=7")
    _process(tmp_path, 10, "bindfs", "/srv/mnt", device="/dev/fuse")
    for user, command in ((7, ["bindfs", "/srv/mnt"]), (0, ["bindfs", "/srv/mnt"]), (8, None)):
        monkeypatch.setattr(daemons, "_user_of", lambda _, user=user: user)
        assert command_of(mount, proc=tmp_path) == command
