# SPDX-License-Identifier: LGPL-2.1-or-later
"""The supervisor of `efuse run` starts a command, and answers its system calls.

The kernel of the host has no eFuse, so no mount of FUSE succeeds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from efuse.errors import MountError
from efuse.fs.options import Options
from efuse.supervisor import launch as launch_module
from efuse.supervisor.running import Ended, Running

_MOUNTS_FUSE = """
import ctypes, os, sys
fd = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fd
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(b"x", os.fsencode(sys.argv[1]), b"fuse.x", ctypes.c_ulong(0), options) == -1
sys.exit(ctypes.get_errno())
"""
_RUNS_AGAIN = """
import sys
from efuse.errors import MountError
from efuse.fs.options import Options
from efuse.supervisor.running import Running
try:
    Running(["true"], Options())
except MountError as error:
    sys.exit(7 if "carried out" in str(error) and "(EBUSY)" in str(error) else 8)
"""


def _ended(*command: object, adopt: bool = False) -> int:
    """Run a command that mounts nothing, and return its exit status."""
    running = Running([*map(str, command)], Options(), adopt=adopt)
    with contextlib.closing(running):
        (event,) = running.events()
        assert isinstance(event, Ended)
        assert not running.has_mounted
        return event.status


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_exit_status_is_that_of_a_shell(script: str, status: int) -> None:
    assert _ended("sh", "-c", script) == status


def test_command_that_does_not_exist_is_reported() -> None:
    with pytest.raises(MountError, match=r"/no/such cannot be started: .*\(ENOENT\)"):
        Running(["/no/such"], Options())


def test_second_supervisor_of_a_process_is_refused() -> None:
    assert _ended(sys.executable, "-c", _RUNS_AGAIN) == 7


def test_children_from_before_the_daemon_are_left_alone() -> None:
    """As in a script with ``helper & exec efuse run --require ...``."""
    helper = subprocess.Popen(["sleep", "600"])
    try:
        with contextlib.closing(Running(["sleep", "600"], None, adopt=True)) as running:
            assert running._processes() == {running.process.pid}
            running.end()
            assert helper.poll() is None
    finally:
        helper.kill()
        helper.wait()


def test_daemon_that_cannot_be_attended_to_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[subprocess.Popen[bytes]] = []

    def launch(*arguments: Any, **more: Any) -> object:
        found = launch_module.launch(*arguments, **more)
        launched.append(found.process)
        return found

    def fails(*_: object, **_more: object) -> None:
        raise OSError(errno.EMFILE, "too many descriptors")

    monkeypatch.setattr("efuse.supervisor.running.launch", launch)
    monkeypatch.setattr("efuse.supervisor.running.Errands", fails)
    with pytest.raises(OSError, match="too many descriptors"):
        Running(["sleep", "600"], None)
    assert launched[0].returncode == -signal.SIGKILL


def test_signal_reaches_the_background_although_the_end_of_the_first_process_is_not_seen() -> None:
    running = Running(["sh", "-c", "sleep 600 & exit 0"], None, adopt=True)
    with contextlib.closing(running):
        select.select([running._pidfd], [], [], 30)
        running.hand_on(signal.SIGTERM)
        began = time.monotonic()
        assert [*running.events()] == [Ended(0)]
        assert time.monotonic() - began < 8


def test_daemon_that_is_started_again_has_the_limits_of_the_first(tmp_path: Path) -> None:
    """The supervisor raises its own limit of descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    try:
        script = 'ulimit -Sn >> "$0"'
        running = Running(["sh", "-c", script, str(tmp_path / "limits")], None, adopt=True)
        with contextlib.closing(running):
            assert [*running.events()] == [Ended(0)]
            running.restart()
            assert [*running.events()] == [Ended(0)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    first, second = (tmp_path / "limits").read_text().split()
    assert first == second == str(before[0] - 1)


def test_process_in_the_background_is_awaited(tmp_path: Path) -> None:
    """It might be about to mount."""
    script = f"(sleep 0.5; touch {tmp_path}/done) & exit 0"
    assert _ended("sh", "-c", script, adopt=True) == 0
    assert (tmp_path / "done").exists()


def test_mount_of_another_type_is_left_to_the_kernel(place: Path) -> None:
    assert _ended("mount", "-t", "tmpfs", "x", place) == 0
    try:
        assert place.stat().st_dev != place.parent.stat().st_dev
    finally:
        subprocess.run(["umount", place], check=True)


def test_mount_of_fuse_fails_where_the_kernel_has_no_efuse(place: Path) -> None:
    """It does not silently become a plain one."""
    assert _ended(sys.executable, "-c", _MOUNTS_FUSE, place) == errno.ENOENT  # of /dev/efuse
    assert not os.path.ismount(place)


def test_missing_directory_is_reported_by_the_kernel(place: Path) -> None:
    assert _ended(sys.executable, "-c", _MOUNTS_FUSE, place / "missing") == errno.ENOENT
