# SPDX-License-Identifier: LGPL-2.1-or-later
"""How many requests a second a small pyfuse3 file system answers with its channel, and without.

``efuse guest run -- .venv/bin/python -m tests.perf.pyfuse3_channels [SECONDS [CALLERS]]``, with
``--icount`` for a clock that counts instructions. Each answer is checked; no handlers answer
in the kernel, and what does not come in the way that is meant ends it.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import efuse
from efuse.control import Connection, find
from efuse.fs import Mounted
from tests.guest.channel_daemon import brought
from tests.guest.daemons import Call
from tests.shelf import SIZES, Shelf, content

ROUNDS = 5
SYSTEMS = ("fuse", "efuse-queues", "efuse")
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


LOADS: dict[str, tuple[Callable[..., int], tuple[int, ...]]] = {
    "stat": (_stats, ()),
    "read-4k": (_reads, (4096,)),
    "read-128k": (_reads, (1 << 17,)),
    "write-128k": (_writes, (1 << 17,)),
    "write-1m": (_writes, (1 << 20,)),
}


def rate(load: str, root: Path, seconds: float, callers: int) -> float:
    """Return how many requests a second *callers* processes get answered."""
    function, arguments = LOADS[load]
    begun = time.monotonic()
    calls = [Call(function, root, begun + seconds, *arguments) for _ in range(callers)]
    done = sum(call.result() for call in calls)
    return done / (time.monotonic() - begun)


def _came_as_meant(system: str, mounted: Mounted, requests: float) -> bool:
    if system == "fuse":
        return mounted.type == "fuse"
    found = brought(Connection(find(mounted.mountpoint).connection))
    return found >= requests if system == "efuse" else found == 0


def one_round(system: str, mountpoint: Path, seconds: float, callers: int) -> dict[str, float]:
    """Mount it once, and return the rate of each load."""
    shelf = Shelf()
    shelf.efuse_options = efuse.Options(consistency="strict")
    plain = system == "fuse"
    with efuse.mount(
        shelf, mountpoint, plain=plain, required=not plain, channels=system == "efuse"
    ) as mounted:
        rates = {load: rate(load, mountpoint, seconds, callers) for load in LOADS}
        assert _came_as_meant(system, mounted, sum(rates.values()) * seconds * 0.9), system
    return rates


def main(arguments: list[str]) -> None:
    seconds = float(arguments[0]) if arguments else 2.0
    callers = int(arguments[1]) if len(arguments) > 1 else 1
    rates: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(ROUNDS):
            for system in SYSTEMS:
                rates[system].append(one_round(system, Path(directory), seconds, callers))
    print(f"{callers} callers, {ROUNDS} rounds of {seconds:g} s, medians; efuse over the others")
    print(
        f"{'requests/s':12}",
        *(f"{system:>13}" for system in SYSTEMS),
        " /queues (of rounds)  /fuse",
    )
    for load in LOADS:
        of = {system: [each[load] for each in rates[system]] for system in SYSTEMS}
        medians = [statistics.median(of[system]) for system in SYSTEMS]
        over = sorted(a / b for a, b in zip(of["efuse"], of["efuse-queues"], strict=True))
        print(
            f"{load:12}",
            *(f"{value:13.0f}" for value in medians),
            f"{statistics.median(over):8.2f} ({over[0]:.2f}-{over[-1]:.2f})",
            f"{medians[2] / medians[0]:10.2f}",
        )


if __name__ == "__main__":
    main(sys.argv[1:])
