# SPDX-License-Identifier: LGPL-2.1-or-later
"""The cost of counting the requests of a plain FUSE mount, per request.

``.venv/bin/python -m tests.perf.plain_watching`` measures GETATTRs of libfuse's passthrough_ll in a
guest whose clock counts instructions; with ``--here`` it measures time on this machine.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from efuse.bpf import libbpf
from efuse.bpf.requests import RequestCounters
from tests.commands import EFUSE
from tests.guest.support.channel_daemon import passthrough_ll
from tests.guest.support.daemons import eventually
from tests.guest.support.tiny_fs import getattr_from_daemon

REQUESTS, ROUNDS = 1000, 9
_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


def one_round(path: Path) -> float:
    """Return the mean time of a request, ns."""
    start = time.perf_counter_ns()
    for _ in range(REQUESTS):
        getattr_from_daemon(path)
    return (time.perf_counter_ns() - start) / REQUESTS


def measure() -> None:
    """Measure, and print the results."""
    with ExitStack() as ends:
        base = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        source, path = base / "source", base / "mnt"
        source.mkdir()
        path.mkdir()
        daemon = subprocess.Popen([*passthrough_ll(source), path])
        ends.callback(daemon.wait)
        eventually(path.is_mount)
        ends.callback(subprocess.run, ["umount", path], check=True)
        one_round(path)
        without, counted = [], []
        for _ in range(ROUNDS):
            without.append(one_round(path))
            with RequestCounters():
                one_round(path)
                counted.append(one_round(path))
            one_round(path)
        ends.callback(_STATS.write_text, _STATS.read_text())
        _STATS.write_text("1")
        before = set(program_ids())
        with RequestCounters():
            one_round(path)
            for number in set(program_ids()) - before:
                print_program(number)
    for name, found in (("a request takes", without), ("counted", counted)):
        median = statistics.median(found)
        print(f"{name:16}{median:8.0f}  ({min(found):.0f} to {max(found):.0f})")


def program_ids() -> list[int]:
    """Return the IDs of all BPF programs in the kernel."""
    return list(libbpf._ids("bpf_prog_get_next_id"))


def print_program(number: int) -> None:
    """Print the mean time of a program's runs."""
    fd = libbpf.program_by_id(number)
    assert fd is not None
    raw = libbpf._info(fd, 232)
    name = raw[64:80].partition(b"\0")[0].decode()
    run_ns, run_count = (int.from_bytes(raw[at : at + 8], "little") for at in (192, 200))
    print(f"program {name:10} {run_ns / max(1, run_count):8.0f}  ({run_count} runs)")


def main(arguments: list[str]) -> None:
    if "--here" in arguments:
        measure()
    else:
        words = [sys.executable, "-m", "tests.perf.plain_watching", "--here"]
        subprocess.run(
            [*EFUSE, "guest", "run", "--icount", "--no-module", "--", *words], check=True
        )


if __name__ == "__main__":
    main(sys.argv[1:])
