# SPDX-License-Identifier: LGPL-2.1-or-later
"""The helper ``mount.efuse``, called like mount(8) does, and by mount(8) itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import run_output

_HELPER = Path("/sbin/mount.efuse")
_OURS = Path(sys.executable).parent / "mount.efuse"
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def source(place: Path) -> Path:
    """A directory with one file."""
    directory = place / "source"
    directory.mkdir()
    (directory / "f").write_bytes(b"data")
    return directory


@pytest.fixture
def mountpoint(place: Path) -> Iterator[Path]:
    """A directory to mount on. Everything that is mounted there is unmounted after the test."""
    directory = place / "mnt"
    directory.mkdir()
    yield directory
    while os.path.ismount(directory):
        _libc.umount2(os.fsencode(directory), 2)


@pytest.fixture
def linked() -> Iterator[None]:
    """A link to the helper in the directory where mount(8) looks for it."""
    try:
        _HELPER.symlink_to(_OURS)
    except FileExistsError:
        pytest.skip(f"{_HELPER} is somebody else's")
    except OSError as error:
        pytest.skip(f"{_HELPER} cannot be made: {error}")
    yield
    with contextlib.suppress(FileNotFoundError):
        _HELPER.unlink()


def _mounts(mountpoint: Path) -> list[list[str]]:
    """Return the lines of /proc/self/mounts for *mountpoint*, as lists of fields."""
    lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [line for line in lines if line[1] == str(mountpoint)]


def test_helper_passes_through_the_directory_after_the_hash(source: Path, mountpoint: Path) -> None:
    run_output(_OURS, f"passthrough#{source}", mountpoint, "-o", "plain,consistency=exclusive")
    assert (mountpoint / "f").read_bytes() == b"data"
    assert _mounts(mountpoint)[0][0] == rf"passthrough\043{source}"


def test_helper_accepts_a_directory_with_a_number_sign(place: Path, mountpoint: Path) -> None:
    (place / "a#b").mkdir()
    (place / "a#b/g").touch()
    run_output(_OURS, place / "a#b", mountpoint, "-o", "plain")
    assert os.listdir(mountpoint) == ["g"]


def test_helper_passes_the_standard_options_to_the_kernel(source: Path, mountpoint: Path) -> None:
    standard = "ro,noexec,nosuid,nodev,noatime,nodiratime,relatime,lazytime"
    passed_over = "_netdev,nofail,noauto,user,x-systemd.automount,x-gvfs-hide,comment=mine"
    run_output(_OURS, source, mountpoint, "-o", f"plain,{standard},{passed_over}")
    options = set(_mounts(mountpoint)[0][3].split(","))
    assert {"ro", "noexec", "nosuid", "nodev", "noatime"} <= options


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ("plain,bogus", "bogus cannot be used: there is no such mount option (EINVAL)\ntry: "),
        ("plain,bogus=1", "bogus cannot be used: there is no such mount option (EINVAL)\ntry: "),
        ("plain,ro=1", "ro=1 cannot be used: ro has no value (EINVAL)\ntry: ro\n"),
        ("consistency=none", "consistency cannot be 'none'"),
    ],
)
def test_helper_names_an_unknown_option(
    source: Path, mountpoint: Path, options: str, output: str
) -> None:
    assert f"mount.efuse: {output}" in run_output(
        _OURS, source, mountpoint, "-o", options, status=32
    )
    assert not os.path.ismount(mountpoint)


def test_sloppy_helper_ignores_an_unknown_option(source: Path, mountpoint: Path) -> None:
    run_output(_OURS, source, mountpoint, "-s", "-o", "plain,bogus")
    assert os.path.ismount(mountpoint)


def test_helper_without_a_directory_is_a_usage_error() -> None:
    assert "Missing argument" in run_output(_OURS, "passthrough#/", status=1)


@pytest.mark.usefixtures("linked")
def test_mount_runs_the_helper(source: Path, mountpoint: Path) -> None:
    run_output("mount", "-t", "efuse", f"passthrough#{source}", mountpoint, "-o", "plain,ro,nofail")
    assert (mountpoint / "f").read_bytes() == b"data"
    assert "ro" in _mounts(mountpoint)[0][3].split(",")
    run_output("umount", mountpoint)
    assert not os.path.ismount(mountpoint)


@pytest.mark.usefixtures("linked")
def test_mount_prints_the_message_of_the_helper(source: Path, mountpoint: Path) -> None:
    output = run_output("mount", "-t", "efuse", source, mountpoint, "-o", "plain,bogus", status=32)
    assert "mount.efuse: bogus cannot be used" in output


@pytest.mark.usefixtures("linked")
def test_line_of_fstab_is_mounted_once(source: Path, mountpoint: Path, place: Path) -> None:
    options = "plain,consistency=exclusive,nosuid,_netdev,nofail,x-systemd.requires=local-fs.target"
    (place / "fstab").write_text(f"passthrough#{source} {mountpoint} efuse {options} 0 0\n")
    for _ in range(2):
        run_output("mount", "-T", place / "fstab", "-a")
        assert (mountpoint / "f").read_bytes() == b"data"
        assert len(_mounts(mountpoint)) == 1
    run_output("umount", mountpoint)
