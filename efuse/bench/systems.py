# SPDX-License-Identifier: LGPL-2.1-or-later
"""The systems that are compared: ways to mount the same files; and what their daemons do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from efuse.bench import ring
from efuse.bench.foreground import Program
from efuse.bench.programs import PROGRAMS, URING, command
from efuse.bench.ring import OVER_RINGS, OWN
from efuse.bench.usage import Usage, kernel_counts, switches
from efuse.control import Connection
from efuse.errors import EfuseError
from efuse.fs.options import Options
from efuse.profiles import default_options

__all__ = ["DAEMONS", "EXCLUSIVE", "ON_REQUEST", "SYSTEMS", "System", "is_efuse", "mounted"]

FORCED = ("efuse-direct", "efuse-cache", "efuse-daemon", "efuse-device")
"""``efuse`` with all READs and WRITEs forced to one path, to compare with its own choice."""

EFUSE_DEFAULT = "efuse-default"

EXCLUSIVE = Options(consistency="exclusive", lazy_atime=True, capacity={"blocks": 1 << 14})
"""What the C daemons of ``efuse`` declare, with a data cache, which is off by default."""

SYSTEMS = ("ext4", "fuse", "fuse-tuned", "efuse")
"""``ext4`` is the lower file system itself. ``fuse`` is plain FUSE with timeouts of 0, and
``fuse-tuned`` plain FUSE with long timeouts and the write-back cache. ``efuse`` has timeouts of 0
and the exclusive mode."""

ON_REQUEST = (
    *("fuse-writeback", "fuse-default", *OVER_RINGS),
    *("efuse-writethrough", EFUSE_DEFAULT, *FORCED),
)
"""Systems that are measured only on request. ``fuse-writeback`` is ``fuse`` with the write-back
cache that ``efuse`` has, ``fuse-io-uring`` and ``efuse-io-uring`` are ``fuse`` and ``efuse`` over
io_uring (with ``-zero-copy`` or ``-copy`` at the end, served by ``passthrough_uring``), and
``efuse-writethrough`` is ``efuse`` without the write-back cache. ``fuse-default`` is the daemon as
it is by itself, and ``efuse-default`` is that under ``efuse run``, both without an option."""

DAEMONS = ("passthrough", *PROGRAMS)
"""``passthrough`` is ``efuse.fs.Passthrough``, in Python; the others are in C."""


def is_efuse(system: str) -> bool:
    """Return whether *system* is mounted on eFuse."""
    return system.startswith("efuse")


class System:
    """A mounted system. ``root`` is the directory where its files are."""

    connection: int | None = None
    """Number of its connection on eFuse, else None."""

    pid: int | None = None
    """Process ID of its daemon; None if it has none."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.root = root

    def usage(self) -> Usage:
        """Return what the daemon has done so far.

        :raises EfuseError: the daemon has ended.
        """
        return Usage()

    def moved_bytes(self) -> int:
        """Return the bytes that the daemon moved so far in ways that the kernel does not count."""
        moves = ring.moves(self.name, self.root)
        return moves.moved_bytes if moves else 0

    def prove(self, before: Usage, after: Usage, requests: int) -> None:
        """Check that the daemon got all *requests* between two usages, in the intended way.

        :raises EfuseError: it did not.
        """


class _PythonSystem(System):
    """A system served by :mod:`efuse.bench.daemon`."""

    def __init__(self, name: str, root: Path, daemon: subprocess.Popen[str]) -> None:
        super().__init__(name, root)
        self._daemon = daemon
        self.pid = daemon.pid
        self.connection = self._line()["connection"]

    def _line(self) -> dict[str, Any]:
        assert self._daemon.stdout
        line = self._daemon.stdout.readline()
        if not line:
            raise EfuseError(
                f"the daemon of {self.name} ended with exit status {self._daemon.wait()}",
                hint="its output above gives the reason",
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def usage(self) -> Usage:
        """Return what the daemon has done so far."""
        assert self._daemon.stdin
        self._daemon.stdin.write("\n")
        self._daemon.stdin.flush()
        counted = kernel_counts(self.connection)
        return Usage(self._line(), switches([self._daemon.pid]), *counted)


class _ProgramSystem(System):
    """A system served by a C daemon."""

    def __init__(self, name: str, root: Path, program: Program) -> None:
        super().__init__(name, root)
        self._program = program
        self.pid = program.pid
        self.connection = program.connection

    def usage(self) -> Usage:
        """Return what the daemon has done so far."""
        return self._program.usage()


class _RingSystem(_ProgramSystem):
    """A system over io_uring, served by a C daemon."""

    def usage(self) -> Usage:
        """Return what the daemon has done so far, including what came over its rings."""
        counted = super().usage()
        # Keep this order: a request that the rings do not count yet is counted as waiting.
        waiting = ring.waiting(self._program.number, on_efuse=is_efuse(self.name))
        return replace(
            counted,
            waiting=waiting,
            rings=ring.delivered(self._program.pid),
            moves=ring.moves(self.name, self.root),
        )

    def prove(self, before: Usage, after: Usage, requests: int) -> None:
        """Check that all requests sent between two usages came over the rings.

        :raises EfuseError: some did not, or data was moved in another way.
        """
        sent = after.total - before.total - after.waiting
        why = ring.missed(before, after, max(requests, sent))
        why = why or ring.copied(self.name, before, after)
        if why:
            raise EfuseError(f"{self.name} was not measured: {why}")


@contextmanager
def mounted(
    name: str, source: Path, mountpoint: Path, daemon: str = "passthrough"
) -> Iterator[System]:
    """Mount *source* on *mountpoint* as the system *name*, served by *daemon*, and yield it.

    :raises EfuseError: it cannot be mounted.
    """
    if name == "ext4":
        yield System(name, source)
    elif name in FORCED:
        kind, _, path = name.partition("-")
        with _served(kind, source, mountpoint, daemon) as system:
            assert system.connection is not None
            Connection(system.connection).forced_path = path
            system.name = name
            yield system
    else:
        with _served(name, source, mountpoint, daemon) as system:
            yield system


@contextmanager
def _served(name: str, source: Path, mountpoint: Path, daemon: str) -> Iterator[System]:
    mountpoint.mkdir(parents=True, exist_ok=True)
    daemon = URING if name in OWN else daemon
    if daemon in (*PROGRAMS, URING):
        words = command(daemon, name, source, mountpoint)
        with ExitStack() as stack:
            if name in OVER_RINGS:
                stack.enter_context(ring.enabled(name))
            options = EXCLUSIVE if name != EFUSE_DEFAULT else default_options(words)
            started = Program.started(
                words, mountpoint, accelerated=is_efuse(name), options=options
            )
            kind = _RingSystem if name in OVER_RINGS else _ProgramSystem
            yield kind(name, mountpoint, stack.enter_context(started))
        return
    words = [sys.executable, "-m", "efuse.bench.daemon", name, str(source), str(mountpoint)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin
        try:
            yield _PythonSystem(name, mountpoint, child)
        finally:
            child.stdin.close()
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
