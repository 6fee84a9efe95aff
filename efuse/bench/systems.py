# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ways to mount the same files that are compared, and what their daemons have done."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from efuse.control import Connection
from efuse.errors import EfuseError
from efuse.stats import Sample, read

__all__ = ["DAEMONS", "SYSTEMS", "Usage", "mounted"]

SYSTEMS = ("ext4", "fuse", "fuse-tuned", "efuse")
"""``ext4`` is the lower file system itself, ``fuse`` plain FUSE without time-outs, ``fuse-tuned``
plain FUSE with long time-outs and the write-back cache, ``efuse`` without time-outs, exclusive."""

DAEMONS = ("passthrough",)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a daemon has done so far: requests by handler, and voluntary context switches.

    ``sample`` holds the kernel's counters, without times; None where there is no eFuse.
    """

    requests: dict[str, int] = field(default_factory=dict)
    switches: int = 0
    sample: Sample | None = None

    @property
    def total(self) -> int:
        """All requests that wait for an answer: FORGET is none."""
        return sum(n for name, n in self.requests.items() if name != "forget")


class System:
    """One mounted system. ``root`` is where the files are seen."""

    def __init__(self, name: str, root: Path, daemon: subprocess.Popen[str] | None = None) -> None:
        self.name = name
        self.root = root
        self._daemon = daemon
        self.connection: int | None = self._line()["connection"] if daemon else None

    def _line(self) -> dict[str, Any]:
        assert self._daemon and self._daemon.stdout
        line = self._daemon.stdout.readline()
        if not line:
            raise EfuseError(
                f"the daemon of {self.name} ended: exit status {self._daemon.wait()}",
                hint="what it printed above says why",
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def usage(self) -> Usage:
        """Return what the daemon has done so far.

        :raises EfuseError: it has ended.
        """
        if self._daemon is None:
            return Usage()
        assert self._daemon.stdin
        self._daemon.stdin.write("\n")
        self._daemon.stdin.flush()
        sample = None
        if self.connection is not None:
            sample = read(Connection(self.connection), timing=False)
        return Usage(self._line(), _switches(self._daemon.pid), sample)


def _switches(pid: int) -> int:
    text = "".join(p.read_text() for p in Path(f"/proc/{pid}/task").glob("*/status"))
    return sum(int(n) for n in re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.M))


@contextmanager
def mounted(name: str, source: Path, mountpoint: Path) -> Iterator[System]:
    """Mount *source* on *mountpoint* as the system *name* and yield it.

    :raises EfuseError: it cannot be mounted.
    """
    if name == "ext4":
        yield System(name, source)
        return
    mountpoint.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "efuse.bench.daemon", name, str(source), str(mountpoint)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdin
        try:
            yield System(name, mountpoint, daemon)
        finally:
            daemon.stdin.close()
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()
