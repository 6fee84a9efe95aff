# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measure in guests the model's parameters, and the figures that the model has to reproduce.

``python -m docs.model.measure`` writes ``docs/model/measured.json``. In a guest with one CPU the
clock counts instructions; in a guest with two CPUs it is time under software emulation. A request
is an fstat(2) that libfuse's ``passthrough_ll`` answers. The kernel caches nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from efuse.bench.foreground import wait_for_mount
from efuse.bench.programs import built
from efuse.fs.mountpoint import unmount
from efuse.supervisor.running import started

_HERE = Path(__file__).parent
_OUT = _HERE / "measured.json"
_SYSTEMS = ("fuse", "queues", "channels")
_ROUNDS = 3
_LOAD_MS = {1: 400, 2: 2000}
_CPUCLOCK_SCHED = 2


def _cpu_ns(pid: int) -> int:
    """Return the CPU time of a process, by its CPU-time clock (clock_getcpuclockid(3))."""
    return time.clock_gettime_ns(~pid << 3 | _CPUCLOCK_SCHED)


def _sleeps(pid: int) -> int:
    """Return the number of voluntary context switches of a process's threads (proc(5), status)."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = status.read_text().splitlines()
        found += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
    return found


@contextmanager
def _served(system: str, lower: Path, point: Path) -> Iterator[int]:
    """Mount *lower* by one of the systems, and yield the daemon's process ID."""
    options = f"source={lower},cache=never,timeout=0,clone_fd"
    words = [str(built("passthrough_ll")), "-f", "-o", options, str(point)]
    with ExitStack() as stack:
        if system == "fuse":
            process = subprocess.Popen(words)
            wait_for_mount(process, point)
        else:
            daemon = started(words, channels=system == "channels")
            process = stack.enter_context(daemon)[0].process
        try:
            yield process.pid
        finally:
            unmount(str(point))
            process.wait(60)


def _round(costs: Path, system: str, lower: Path, point: Path) -> dict[str, dict[str, float]]:
    """Return the figures of one system, by the number of callers.

    ``rate`` is in requests per second, ``caller`` and ``daemon`` are CPU time in nanoseconds for
    each request, and ``sleeps`` is the number of times that the daemon sleeps for each request.
    """
    found = {}
    cpus = os.sched_getaffinity(0)
    with _served(system, lower, point) as pid:
        for callers in (1, 2):
            on = [str(n % len(cpus)) for n in range(callers)]
            before, slept = _cpu_ns(pid), _sleeps(pid)
            words = [str(costs), "load", str(point / "file"), str(_LOAD_MS[len(cpus)]), *on]
            output = json.loads(subprocess.check_output(words))
            found[str(callers)] = {
                "rate": output["requests"] * 1e9 / output["elapsed"],
                "caller": output["caller"] / output["requests"],
                "daemon": (_cpu_ns(pid) - before) / output["requests"],
                "sleeps": (_sleeps(pid) - slept) / output["requests"],
            }
    return found


def _in_guest(costs: Path) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        lower, point = Path(name, "lower"), Path(name, "point")
        lower.mkdir()
        point.mkdir()
        (lower / "file").write_bytes(bytes(4096))
        parts = json.loads(subprocess.check_output([costs, "parts", lower / "file"]))
        rounds = [{s: _round(costs, s, lower, point) for s in _SYSTEMS} for _ in range(_ROUNDS)]
    systems = {
        system: {
            callers: {
                key: round(statistics.median(r[system][callers][key] for r in rounds), 3)
                for key in ("rate", "caller", "daemon", "sleeps")
            }
            for callers in ("1", "2")
        }
        for system in _SYSTEMS
    }
    return {"parts": parts, "systems": systems}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(_in_guest(Path(sys.argv[1]))))
        return
    measured = {}
    with tempfile.TemporaryDirectory(dir=_HERE) as name:
        costs = Path(name, "costs")
        subprocess.run(["gcc", "-O2", "-pthread", "-o", costs, _HERE / "costs.c"], check=True)
        for cpus, more in (("1", ["--icount"]), ("2", [])):
            words = [sys.executable, "-c", "from efuse.cli.main import main; main()", "guest"]
            words += ["run", *more, "--again", "1", "--memory", "2000M", "--timeout", "500", "--"]
            words += [sys.executable, "-m", "docs.model.measure", str(costs)]
            output = subprocess.check_output(words, text=True)
            print(cpus, output, flush=True)
            measured[cpus] = json.loads(output.splitlines()[-1])
    _OUT.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
