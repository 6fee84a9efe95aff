# SPDX-License-Identifier: LGPL-2.1-or-later
"""Callers that send one request after another: ``load.c``, compiled at its first use.

fio cannot do this: its ``filestat`` engine looks a name up for each stat and does not open the
file, and its count of context switches does not separate voluntary from involuntary ones.
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

__all__ = ["FILE_BYTES", "load", "load_program", "prepare", "stamp_library"]

_SOURCE = Path(__file__).with_name("load.c")
_STAMP = Path(__file__).with_name("stamp.c")

FILE_BYTES = 1 << 20
"""Size of the file. Each eight bytes of it hold their own offset."""


@dataclass(frozen=True, slots=True)
class Load:
    """The results of all callers together.

    :ivar requests: number of requests answered.
    :ivar elapsed_ns: time from the start to the last answer.
    :ivar switches: voluntary context switches of the callers.
    :ivar preempted: involuntary context switches of the callers.
    :ivar latency_p50_ns: median of the time from a request to its answer.
    :ivar latency_p99_ns: 99th percentile of the time from a request to its answer.
    :ivar queueing_p50_ns: median of the time until the daemon took a request; None if the daemon
        did not report it (see ``stamp.c``).
    :ivar queueing_p99_ns: 99th percentile of the time until the daemon took a request, or None.
    """

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
        """Requests answered per second."""
        return self.requests * 1e9 / self.elapsed_ns


def prepare(file: Path) -> None:
    """Write the file that the callers use."""
    file.write_bytes(struct.pack(f"={FILE_BYTES // 8}Q", *range(0, FILE_BYTES, 8)))


def load_program() -> Path:
    """Return the path of the callers' program; compile it if it is not in the cache."""
    return compiled("programs", "load", [_SOURCE], ["-pthread"])


def stamp_library() -> Path:
    """Return the path of ``stamp.c``'s library, which is preloaded into a daemon."""
    return compiled("programs", "stamp.so", [_STAMP], ["-shared", "-fPIC"])


def load(file: Path, kind: str, block: int, milliseconds: int, cpus: Sequence[int]) -> Load:
    """Send requests for *file* from one thread on each of *cpus*, and return the results.

    :param kind: ``stat`` or ``read``.
    :param block: bytes of a read.
    :param milliseconds: how long to send requests.
    :raises EfuseError: a request failed, or an answer was wrong.
    """
    words = [load_program(), file, FILE_BYTES, kind, block, milliseconds, *cpus]
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        why = done.stderr.strip() or f"exit status {done.returncode}"
        raise EfuseError(f"the callers failed: {why}")
    return Load(**json.loads(done.stdout))
