# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a daemon of the zoo, plain or on eFuse, and do the work on it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from efuse.bench.counter import SentRequests
from efuse.bench.foreground import wait_for_mount
from efuse.control import Connection
from efuse.fs.mountpoint import unmount
from efuse.profiles import default_options
from efuse.stats import read
from efuse.supervisor.running import started
from tests.zoo.daemons import Daemon
from tests.zoo.work import Seen, make_tree, steps

__all__ = ["Outcome", "both", "differences"]

_END_S = 60


@dataclass
class Outcome:
    """What was seen of a daemon.

    :ivar seen: what was seen, by step.
    :ivar requests: how many requests reached the daemon, by step.
    :ivar reads: how many of them were READs, by step; only on eFuse.
    :ivar hits: how many requests the kernel answered, by step; only on eFuse.
    """

    seen: dict[str, Seen] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    reads: dict[str, int] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=dict)


class _Counter:
    """Counts the requests that reach a daemon."""

    def __init__(self, connection: int, *, plain: bool) -> None:
        self._sent = SentRequests(connection) if plain else None
        self._connection = connection

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of requests and READs that reached the daemon, and of hits."""
        if self._sent is not None:
            return self._sent.count(), 0, 0
        sample = read(Connection(self._connection), timing=False)
        reads = sample.opcodes.get("read")
        return sample.total.daemon, reads.daemon if reads else 0, sample.total.hits


def both(daemon: Daemon, where: Path) -> tuple[Outcome, Outcome]:
    """Do the work with a daemon on plain FUSE, then on eFuse, in an empty directory."""
    make_tree(where / "tree")
    found = []
    for kind in ("plain", "efuse"):
        (where / kind).mkdir()
        found.append(_carry_out(daemon, where / "tree", where / kind, plain=kind == "plain"))
    return found[0], found[1]


def differences(plain: Outcome, ours: Outcome) -> Iterator[str]:
    """Yield a line for each file that was not the same on eFuse as on plain FUSE, by step."""
    for step, seen in plain.seen.items():
        other = ours.seen[step]
        for path in sorted({*seen, *other}):
            if seen.get(path) != other.get(path):
                yield f"{step}: {path}: plain {seen.get(path)}, eFuse {other.get(path)}"


def _carry_out(daemon: Daemon, tree: Path, place: Path, *, plain: bool) -> Outcome:
    """Prepare a daemon in the empty directory *place*, mount it, and do the work.

    On eFuse as ``efuse run`` does without options.
    """
    point = place / "mnt"
    point.mkdir()
    outcome = Outcome()
    source = place / daemon.back_door if daemon.back_door else None
    work = steps(read_only=daemon.read_only, only=daemon.only, source=source)
    with _prepared(daemon, tree, place), _mounted(daemon, place, point, plain=plain) as counter:
        before = counter.counts()
        for name, step in work:
            seen = step(point / daemon.top, tree)
            after = counter.counts()
            if isinstance(seen, dict):
                outcome.seen[name] = seen
            for counted, now, then in zip(
                (outcome.requests, outcome.reads, outcome.hits), after, before, strict=True
            ):
                counted[name] = now - then
            before = after
    return outcome


@contextlib.contextmanager
def _prepared(daemon: Daemon, tree: Path, place: Path) -> Iterator[None]:
    """Make what a daemon shows, and run its server if it needs one."""
    daemon.prepare(tree, place)
    try:
        with contextlib.ExitStack() as stack:
            if daemon.server is not None:
                command = daemon.server(place)
                process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
                stack.callback(process.kill)
                assert process.stdout is not None
                if process.stdout.readline() != b"ready\n":
                    raise RuntimeError(f"the server of {daemon.program} has ended")
            yield
    finally:
        daemon.finish(place)


@contextlib.contextmanager
def _mounted(daemon: Daemon, place: Path, point: Path, *, plain: bool) -> Iterator[_Counter]:
    command = daemon.command(place, point)
    os.environ.update(daemon.environment)
    with _input(daemon) as stdin:
        if plain:
            with _plain(command, point, stdin) as counter:
                yield counter
        else:
            with _on_efuse(command, point, stdin) as counter:
                yield counter


@contextlib.contextmanager
def _input(daemon: Daemon) -> Iterator[IO[bytes]]:
    """Open the standard input of a daemon."""
    with tempfile.TemporaryFile() as file:
        file.write(daemon.input.encode())
        file.seek(0)
        yield file


@contextlib.contextmanager
def _plain(command: list[str], point: Path, stdin: IO[bytes]) -> Iterator[_Counter]:
    process = subprocess.Popen(command, stdin=stdin)
    try:
        mount = wait_for_mount(process, point)
        try:
            yield _Counter(mount.connection, plain=True)
        finally:
            _end(process, point)
    finally:
        process.kill()


@contextlib.contextmanager
def _on_efuse(command: list[str], point: Path, stdin: IO[bytes]) -> Iterator[_Counter]:
    with started(command, default_options(command), stdin=stdin) as (running, mounted):
        try:
            yield _Counter(mounted.connection, plain=False)
        finally:
            _end(running.process, point)


def _end(process: subprocess.Popen[bytes], point: Path) -> None:
    unmount(str(point))
    try:
        process.wait(_END_S)
    finally:
        process.kill()
