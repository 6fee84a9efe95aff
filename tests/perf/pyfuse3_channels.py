# SPDX-License-Identifier: LGPL-2.1-or-later
"""How many requests per second a small pyfuse3 file system answers with a channel, and without.

``.venv/bin/python -m tests.perf.pyfuse3_channels instructions|time JSON`` measures in a guest: one
caller and one CPU whose clock counts instructions, or two callers and two CPUs by time. Each answer
is checked, and no handlers answer in the kernel. The measurement fails if requests do not arrive in
the intended way. The JSON has the format of ``efuse bench --json``.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import efuse
from efuse.control import Connection, find
from efuse.fs import Mounted
from tests.blocking_file_system import SIZES, BlockingFileSystem, content
from tests.guest.support.channel_daemon import brought
from tests.guest.support.daemons import Call
from tests.perf.reports import ONE_CPU_COUNTED, Asked, in_guest, result, write_report

_ROUNDS = 5
_SYSTEMS = ("fuse", "efuse-queues", "efuse")
_INSIDE = "--inside"


class _Way(NamedTuple):
    """A way to measure: options of the guest, number of callers, and seconds per load."""

    guest: tuple[str, ...]
    callers: int
    seconds: float


_WAYS = {"instructions": _Way(ONE_CPU_COUNTED, 1, 0.2), "time": _Way(("--cpus", "2"), 2, 1.5)}
_FILE = SIZES.index(1 << 20)


def _stats(root: Path, until_s: float) -> int:
    done = 0
    while time.monotonic() < until_s:
        assert os.stat(root).st_size == 0
        done += 1
    return done


def _reads(root: Path, until_s: float, size: int) -> int:
    data = content(SIZES[_FILE])
    fd = os.open(root / f"f{_FILE}", os.O_RDONLY)
    done = offset = 0
    while time.monotonic() < until_s:
        assert os.pread(fd, size, offset) == data[offset : offset + size]
        offset = (offset + size) % len(data)
        done += 1
    os.close(fd)
    return done


def _writes(root: Path, until_s: float, size: int) -> int:
    fd = os.open(root / f"f{_FILE}", os.O_WRONLY)
    data = bytes(size)
    done = 0
    while time.monotonic() < until_s:
        assert os.pwrite(fd, data, 0) == size
        done += 1
    os.close(fd)
    return done


_LOADS: dict[str, tuple[Callable[..., int], tuple[int, ...]]] = {
    "stat": (_stats, ()),
    "read-4k": (_reads, (4096,)),
    "read-128k": (_reads, (1 << 17,)),
    "write-128k": (_writes, (1 << 17,)),
    "write-1m": (_writes, (1 << 20,)),
}


def _rate(load: str, root: Path, seconds: float, callers: int) -> float:
    """Return how many requests per second *callers* processes get answered together."""
    function, arguments = _LOADS[load]
    begun = time.monotonic()
    calls = [Call(function, root, begun + seconds, *arguments) for _ in range(callers)]
    done = sum(call.result() for call in calls)
    return done / (time.monotonic() - begun)


def _came_as_meant(system: str, mounted: Mounted, requests: float) -> bool:
    if system == "fuse":
        return mounted.type == "fuse"
    found = brought(Connection(find(mounted.mountpoint).connection))
    return found >= requests if system == "efuse" else found == 0


def _round(system: str, mountpoint: Path, way: _Way) -> dict[str, tuple[float, int]]:
    """Mount once; return for each load the rate, and how many requests the daemon got."""
    operations = BlockingFileSystem()
    operations.efuse_options = efuse.Options(consistency="strict")
    plain = system == "fuse"
    with efuse.mount(
        operations, mountpoint, plain=plain, required=not plain, channels=system == "efuse"
    ) as mounted:
        found = {}
        with closing(Asked(mountpoint)) as asked:
            for load in _LOADS:
                before = asked()
                per_second = _rate(load, mountpoint, way.seconds, way.callers)
                found[load] = (per_second, asked() - before)
        requests = sum(per_second for per_second, _ in found.values()) * way.seconds
        assert _came_as_meant(system, mounted, requests * 0.9), system
    return found


def _inside(clock: str, out: Path) -> None:
    way = _WAYS[clock]
    rounds: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        for number in range(_ROUNDS):
            for system in _SYSTEMS:
                print(f"round {number + 1} of {_ROUNDS}: {system}", file=sys.stderr, flush=True)
                for load, one in _round(system, Path(directory), way).items():
                    rounds[load, system].append(one)
    results = [
        result((f"{load}-{way.callers}", system, "pyfuse3"), "req/s", "higher", found)
        for (load, system), found in rounds.items()
    ]
    settings = {"workloads": list(_LOADS), "rounds": _ROUNDS, "clock": clock}
    write_report(out, settings, results)


def main(arguments: list[str]) -> None:
    if arguments[0] == _INSIDE:
        _inside(arguments[1], Path(arguments[2]))
    else:
        clock, out = arguments[0], str(Path(arguments[1]).absolute())
        in_guest("tests.perf.pyfuse3_channels", _WAYS[clock].guest, _INSIDE, clock, out)


if __name__ == "__main__":
    main(sys.argv[1:])
