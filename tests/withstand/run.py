# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the loads on a daemon's mount, kill the daemon again and again, and compare in the end."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from efuse.control import Connection, all_mounts, find
from efuse.control.daemons import holders
from efuse.fs.mountpoint import unmount
from efuse.guest import kernel_log
from tests.commands import EFUSE
from tests.guest.support.daemons import eventually
from tests.guest.support.running_kernel import KernelLog
from tests.withstand.daemons import Daemon
from tests.withstand.loads import READING
from tests.zoo.work import make_tree

__all__ = ["Report", "withstood"]

_LIMIT_S = 300
"""How long a mount or a successor may take, in seconds."""

_END_S = 120
"""How long all loads may take to end, in seconds: the rest of a step, and its comparison."""

_PAUSE_S = 2.0
"""The longest time from one successor to the next kill, in seconds."""


@dataclass
class Report:
    """What was seen of a daemon.

    :ivar kills: how often it was killed.
    :ivar steps: how many steps each load has made.
    :ivar pauses_ms: how long each time without a daemon was, in milliseconds.
    :ivar resent: how many requests were sent again.
    :ivar settled: of how many requests the outcome was established.
    :ivar failed: how many requests failed, which the programs have not noticed: read-ahead of
        removed files, and requests of threads that were ended.
    :ivar faults: everything that went wrong.
    """

    daemon: str
    kills: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    pauses_ms: list[int] = field(default_factory=list)
    resent: int = 0
    settled: int = 0
    failed: int = 0
    faults: list[str] = field(default_factory=list)


def withstood(
    daemon: Daemon, where: Path, *, kills: int, seed: int, loads: Sequence[str] = ()
) -> Report:
    """Run a daemon below ``efuse run --restart`` in an empty directory, and kill it.

    :param kills: how often.
    :param loads: names of the loads; empty: all of the daemon.
    """
    report = Report(daemon.name)
    make_tree(where / "tree")
    daemon.prepare(where)
    point = where / "mnt"
    point.mkdir()
    log = KernelLog()
    with _supervised(daemon, where, point, report) as connection:
        working = [_Working(name, daemon, where, point, seed) for name in loads or daemon.loads]
        try:
            for one in working:
                eventually(
                    lambda one=one: one.has_begun or one.has_ended, one.name, deadline_s=_LIMIT_S
                )
            _kill(connection, kills, random.Random(seed), report, working)
        finally:
            (where / "ends").touch()
            until = time.monotonic() + _END_S
            for one in working:
                report.steps[one.name] = one.end(until - time.monotonic(), report.faults)
        if report.kills:
            _note_last_end(connection, report)
        if daemon.below:
            report.faults += differences(point, where / daemon.below)
    printed = log.new_text()
    report.faults += [f"the kernel's log: {each}" for each in kernel_log.complaints(printed)]
    if report.faults:
        report.faults += [f"the module printed: {each}" for each in _of_module(printed)]
    return report


def _of_module(log: str) -> list[str]:
    """Return the lines of the kernel's log that the module has printed."""
    return [line for line in log.splitlines() if "efuse" in line]


class _Working:
    """A load that runs in a process of its own."""

    def __init__(self, name: str, daemon: Daemon, where: Path, point: Path, seed: int) -> None:
        self.name = name
        scratch, directory = where / f"scratch-{name}", point / name
        if name in READING:
            scratch, directory = where / "tree", point
        else:
            scratch.mkdir()
            directory.mkdir()
        self._directory = directory
        self._printed = (where / f"printed-{name}").open("w+")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.withstand.loads", name),
                *map(str, (directory, scratch, where / "ends", seed)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
        )

    @property
    def has_begun(self) -> bool:
        """Whether it has made something."""
        return bool(os.listdir(self._directory))

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, which it does by itself only if something is wrong."""
        return self._process.poll() is not None

    def end(self, left_s: float, faults: list[str]) -> int:
        """Wait for its end, and return how many steps it has made; add what went wrong.

        :param left_s: how long it may take, in seconds.
        """
        try:
            status = self._process.wait(max(left_s, 0))
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
            self._process.kill()
            self._process.wait()
            faults.append(f"{self.name}: it hung")
        with self._printed:
            self._printed.seek(0)
            printed = self._printed.read()
        if status == 0 and int(printed) > 0:
            return int(printed)
        faults.append(f"{self.name}: ended with status {status}: {printed[-1200:].strip()}")
        return 0


@contextlib.contextmanager
def _supervised(daemon: Daemon, where: Path, point: Path, report: Report) -> Iterator[Connection]:
    """Run a daemon, yield its connection, and unmount in the end."""
    command = [*EFUSE, "run", "--restart", "--restart-within", str(_LIMIT_S)]
    command += ["--consistency", "exclusive", "--", *daemon.command(where, point)]
    with (
        (where / "printed").open("w+") as printed,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env={**os.environ, **daemon.environment},
        ) as process,
    ):
        try:
            eventually(lambda: _is_there(point) or process.poll() is not None, deadline_s=_LIMIT_S)
            yield Connection(find(point).connection)
            unmount(str(point))
            status = process.wait(_LIMIT_S)
            if status:
                report.faults.append(f"efuse run ended with status {status}")
            if report.faults:
                printed.seek(0)
                report.faults.append(f"efuse run printed: {printed.read()[-2000:]}")
        except BaseException:
            with contextlib.suppress(subprocess.SubprocessError):
                subprocess.run(["umount", "-l", str(point)], check=False)
            process.kill()
            printed.seek(0)
            print(printed.read()[-3000:], file=sys.stderr)
            raise


def _is_there(point: Path) -> bool:
    return any(mount.mountpoint == str(point) and mount.is_efuse for mount in all_mounts())


def _kill(
    connection: Connection,
    kills: int,
    rng: random.Random,
    report: Report,
    working: Sequence[_Working],
) -> None:
    """Kill the daemon at random moments, each time after the last successor has begun to serve."""
    for number in range(1, kills + 1):
        select.select([], [], [], rng.random() * _PAUSE_S)
        if any(one.has_ended for one in working):
            break
        if report.kills:
            _note_last_end(connection, report)
        for daemon in holders(connection.id):
            os.kill(daemon, signal.SIGKILL)
        eventually(
            lambda number=number: (
                connection.incarnation >= number and connection.daemon == "serving"
            ),
            f"successor {number}",
            deadline_s=_LIMIT_S,
        )
        report.kills = number
        if number % max(kills // 10, 1) == 0:
            print(f"withstand: {report.daemon}: {number} kills", flush=True)


def _note_last_end(connection: Connection, report: Report) -> None:
    """Note what the last end of the daemon has meant; requests are settled also afterwards."""
    told = connection.daemon_exit
    report.pauses_ms.append(told.gap_ms)
    report.resent += told.resent
    report.settled += told.settled
    report.failed += told.failed


def differences(one: Path, other: Path) -> Iterator[str]:
    """Yield a line for each name below two directories whose file, link or size differs."""
    for path in sorted({*_below(one), *_below(other)}):
        found, wanted = _seen(one / path), _seen(other / path)
        if found != wanted:
            yield f"{path}: {found!r:.200} on the mount, {wanted!r:.200} below"


def _below(top: Path) -> Iterator[str]:
    for directory, directories, files in os.walk(top):
        for name in itertools.chain(directories, files):
            yield os.path.relpath(f"{directory}/{name}", top)


def _seen(path: Path) -> object:
    """Return what a path is, and its bytes; None if it does not exist."""
    if not os.path.lexists(path):
        return None
    mode = path.lstat().st_mode
    if path.is_symlink():
        return mode, os.readlink(path)
    return (mode, path.read_bytes()) if path.is_file() else mode
