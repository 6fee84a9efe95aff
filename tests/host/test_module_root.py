# SPDX-License-Identifier: LGPL-2.1-or-later
"""Building a module in another root directory does not affect the mounts of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.module.root import THERE, in_root
from tests.host.conftest import Served


@pytest.fixture
def root(place: Path) -> Iterator[Path]:
    """A root directory with the programs of this machine."""
    made = place / "root"
    for name in ("usr", "dev", "proc", "run", THERE[1:]):
        (made / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (made / name).symlink_to(f"usr/{name}")
    subprocess.run(["mount", "--bind", "/usr", made / "usr"], check=True)
    yield made
    subprocess.run(["umount", made / "usr"], check=True)


def test_command_sees_only_its_root_and_working_directory(root: Path, place: Path) -> None:
    work = place / "work"
    work.mkdir()
    (work / "given").write_text("given")
    (root / "here").touch()
    script = f"ls /; cat {THERE}/given >{THERE}/made; cut -d' ' -f5 /proc/self/mountinfo; env"
    output = subprocess.check_output(in_root(root, work, ["sh", "-c", script]), text=True).split()
    assert (work / "made").read_text() == "given"
    assert "here" in output
    assert not any(line.startswith(str(place)) for line in output)
    mounts = {line for line in output if line.startswith("/")}
    assert {"/", THERE, "/dev", "/proc", "/usr"} <= mounts
    assert {mount.split("/")[1] for mount in mounts} <= {"", THERE[1:], "dev", "proc", "usr"}
    assert "LC_ALL=C" in output


def test_mount_unmounted_meanwhile_is_not_kept_by_the_root(
    root: Path, place: Path, mounted: Served
) -> None:
    """The daemon of the mount ends immediately, and not only when the command ends."""
    command = in_root(root, place, ["sh", "-c", "echo begun; read -r line; echo $line"])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout
        assert running.stdout.readline() == "begun\n"
        subprocess.run(["umount", mounted.path], check=True)
        assert mounted.process.wait(timeout=60) == 0
        assert running.communicate("ended\n", timeout=60)[0] == "ended\n"
    assert running.returncode == 0
