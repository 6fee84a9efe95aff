# SPDX-License-Identifier: LGPL-2.1-or-later
"""Callers that send one request after the other: ``load.c``, compiled at its first use.

fio has no engine for it: its ``filestat`` looks up a name for each status and does not open the
file, and what it says of context switches does not tell the voluntary ones from the others.
"""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from efuse.bench.programs import compiled
from efuse.errors import EfuseError

__all__ = ["FILE_BYTES", "Load", "load", "load_program", "prepare", "stamp_library"]

_SOURCE = Path(__file__).with_name("load.c")
_STAMP = Path(__file__).with_name("stamp.c")

FILE_BYTES = 1 << 20
"""The file's size. Each eight bytes of it hold the number of the first of them."""


@dataclass(frozen=True, slots=True)
class Load:
    """What all callers together found: requests answered in how long, how often callers gave the
    CPU away, and how often it was taken from them, how long half of the requests took at most and
    99 %, and how long they waited until the daemon took them, if it said so (``stamp.c``)."""

    requests: int
    elapsed_ns: int
    switches: int
    preempted: int
    latency_p50_ns: int
    latency_p99_ns: int
    queueing_p50_ns: int | None
    queueing_p99_ns: int | None

    @property
    def per_second(self) -> float:
        """Requests answered in a second."""
        return self.requests * 1e9 / self.elapsed_ns


def prepare(file: Path) -> None:
    """Make the file that is asked for."""
    file.write_bytes(struct.pack(f"={FILE_BYTES // 8}Q", *range(0, FILE_BYTES, 8)))


def load_program() -> Path:
    """Return the callers' program, compiled now if it is not in the cache."""
    return compiled("programs", "load", [_SOURCE], ["-pthread"])


def stamp_library() -> Path:
    """Return what is preloaded into a daemon that shall say when it took a request."""
    return compiled("programs", "stamp.so", [_STAMP], ["-shared", "-fPIC"])


def load(file: Path, kind: str, block: int, milliseconds: int, cpus: Sequence[int]) -> Load:
    """Ask for *file* from a thread on each of *cpus* and return what came of it.

    :param kind: ``stat`` or ``read``.
    :param block: bytes of a read.
    :raises EfuseError: an answer was an error, or wrong.
    """
    words = [load_program(), file, FILE_BYTES, kind, block, milliseconds, *cpus]
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        why = done.stderr.strip() or f"exit status {done.returncode}"
        raise EfuseError(f"the callers failed: {why}")
    return Load(**json.loads(done.stdout))
