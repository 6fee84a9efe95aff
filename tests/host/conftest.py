# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fixtures that mount plain FUSE on this machine, in private directories and process groups."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stand_in import stand_in

__all__ = ["stand_in"]

_HERE = Path(__file__).parent
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)

NO_CACHE = {"entry_timeout": 0.0, "attr_timeout": 0.0}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if _HERE in item.path.parents]
    if mine and (os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK)):
        raise pytest.UsageError("tests/host mounts FUSE file systems: run it as root")


class Served:
    """A mounted file system that another process serves."""

    def __init__(self, process: subprocess.Popen[str], mountpoint: Path, source: Path) -> None:
        self.process = process
        self.path = mountpoint
        self.source = source

    def line(self) -> dict[str, Any]:
        """Return the next report of the process."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"the daemon ended with {self.process.wait()}"
        report: dict[str, Any] = json.loads(text)
        return report

    def report(self) -> dict[str, Any]:
        """Ask the process for a report of its state, and return it."""
        self.process.send_signal(signal.SIGUSR1)
        return self.line()

    def unmount(self) -> dict[str, Any]:
        """Unmount the file system, and return the last report of the process."""
        subprocess.run(["umount", self.path], check=True)
        return self.ended()

    def ended(self) -> dict[str, Any]:
        """Wait until the process has ended with status 0, and return its last report."""
        last = self.line()
        assert last["what"] == "ended"
        assert self.process.wait(timeout=120) == 0
        return last


@pytest.fixture
def place() -> Iterator[Path]:
    """A private directory that every user can reach, unlike pytest's temporary directories."""
    with tempfile.TemporaryDirectory(prefix="efuse-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def served(place: Path) -> Iterator[Callable[..., Served]]:
    """Serve a file system: ``served("module:Class", {arguments}, options=[...])``.

    ``within`` is the beginning of a command that runs the daemon.
    """
    started: list[Served] = []

    def serve(
        what: str = "efuse.fs:Passthrough",
        arguments: dict[str, Any] | None = None,
        *,
        options: tuple[str, ...] = ("default_permissions", "allow_other"),
        within: tuple[str, ...] = (),
        **more: Any,
    ) -> Served:
        mountpoint = place / f"mnt{len(started)}"
        source = place / f"low{len(started)}"
        for directory in (mountpoint, source):
            directory.mkdir()
            directory.chmod(0o755)
        arguments = dict(arguments or {})
        if what == "efuse.fs:Passthrough":
            arguments = {"source": str(source), **NO_CACHE, **arguments}
        told = {
            "what": what,
            "arguments": arguments,
            "mountpoint": str(mountpoint),
            "options": options,
            **more,
        }
        process = subprocess.Popen(
            [*within, sys.executable, str(_HERE / "daemon.py"), json.dumps(told)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(_HERE.parent.parent)},
        )
        one = Served(process, mountpoint, source)
        started.append(one)
        assert one.line()["what"] == "mounted"
        return one

    yield serve
    for one in started:
        _libc.umount2(os.fsencode(one.path), _MNT_DETACH)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    """Call mount(8): ``mount("-t", "tmpfs", "tmpfs", path)``. Unmount the path after the test."""
    made: list[Path] = []

    def run(*words: object) -> None:
        subprocess.run(["mount", *map(str, words)], check=True)
        made.append(Path(str(words[-1])))

    yield run
    for each in reversed(made):
        subprocess.run(["umount", "--lazy", each], check=False)  # a test may have unmounted it


@pytest.fixture
def source(place: Path) -> Path:
    path = place / "source"
    path.mkdir()
    for number in range(64):
        (path / f"a{number}").touch()
    return path


@pytest.fixture
def mounted(served: Callable[..., Served]) -> Served:
    """A mounted pass-through of an empty directory, which has cached nothing."""
    return served()


def run_as(uid: int, script: str, *arguments: object, groups: tuple[int, ...] = ()) -> str:
    """Run a Python *script* as another user, and return its output.

    The interpreter is the one that the virtual environment links to, because the user may not be
    able to reach the directory of the checkout.
    """
    done = subprocess.run(
        [os.path.realpath(sys.executable), "-I", "-c", script, *map(str, arguments)],
        user=uid,
        group=uid,
        extra_groups=list(groups),
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a Python *script* in a new process."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )


@pytest.fixture
def in_processes() -> Callable[..., list[str]]:
    """Run a script in several processes at the same time, and return the output of each.

    ``in_processes(count, script, *arguments)``: the script gets the number of its process as its
    first argument.
    """

    def run(count: int, script: str, *arguments: object) -> list[str]:
        processes = [run_python(script, number, *arguments) for number in range(count)]
        printed = [process.communicate(timeout=600)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * count
        return printed

    return run


@pytest.fixture
def as_user() -> Callable[..., str]:
    """Run a Python script as another user: ``as_user(uid, script, *arguments, groups=())``."""
    return run_as
