# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run workloads on systems side by side: interleaved rounds, each one verified."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import efuse
from efuse.bench.lower import ext4
from efuse.bench.report import Report, Result, ratios
from efuse.bench.systems import System, Usage, mounted
from efuse.bench.workloads import WORKLOADS, Workload, contents, digest
from efuse.control import module_version

__all__ = ["Settings", "machine", "run", "versions"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What to run. ``scale`` multiplies the size of each workload; ``clock`` only says what the
    guest's clock counts: ``time`` or ``instructions``."""

    workloads: tuple[str, ...]
    systems: tuple[str, ...] = ("ext4", "fuse", "fuse-tuned", "efuse")
    daemon: str = "passthrough"
    rounds: int = 5
    scale: float = 0.1
    clock: str = "time"
    lower_mib: int = 512


@dataclass(frozen=True, slots=True)
class _Round:
    value: float
    requests: int
    switches: int
    verified: bool
    before: Usage
    after: Usage


def machine() -> dict[str, Any]:
    """Return what the machine is that it runs on."""
    cpu = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "memory_bytes": int(memory) * 1024,
        "architecture": platform.machine(),
        "guest": os.environ.get("EFUSE_GUEST") == "1",
    }


def versions() -> dict[str, str]:
    """Return the versions of what takes part."""
    return {
        "efuse": efuse.__version__,
        "module": module_version(),
        "python": platform.python_version(),
        "pyfuse3": importlib.metadata.version("pyfuse3"),
    }


def run(settings: Settings, say: Callable[[str], None]) -> Report:
    """Run everything and return what came of it; *say* is told what is going on.

    :raises EfuseError: a system cannot be mounted, or the daemon ended.
    """
    results: list[Result] = []
    counters: dict[str, dict[str, int]] = {}
    with ExitStack() as stack:
        lower = stack.enter_context(ext4(settings.lower_mib))
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="efuse-mounts-")))
        for name in settings.systems:
            for workload in settings.workloads:
                directory = lower / name / workload
                directory.mkdir(parents=True)
                say(f"{workload}: preparing the files for {name}")
                chosen = WORKLOADS[workload]
                chosen.prepare(directory, chosen.scaled(settings.scale))
        systems = [
            stack.enter_context(mounted(name, lower / name, base / name))
            for name in settings.systems
        ]
        for workload in settings.workloads:
            rounds = _run_workload(WORKLOADS[workload], systems, lower, settings, say)
            for name, each in rounds.items():
                results.append(_result(WORKLOADS[workload], name, settings, each))
                kernel = _kernel_counters(each)
                if kernel:
                    counters[f"{workload} {name}"] = kernel
    return Report(
        machine=machine(),
        kernel=platform.release(),
        versions=versions(),
        settings={**asdict(settings), "kernel_counters": counters},
        results=tuple(results),
        ratios=ratios(results),
    )


def _run_workload(
    workload: Workload,
    systems: Sequence[System],
    lower: Path,
    settings: Settings,
    say: Callable[[str], None],
) -> dict[str, list[_Round]]:
    """Do one unmeasured round to warm up, then the measured ones, the systems in turn."""
    count = workload.scaled(settings.scale)
    # What the lower file system shows, of a copy that nothing is mounted over.
    rounds: dict[str, list[_Round]] = {system.name: [] for system in systems}
    reference = lower / "reference" / workload.name
    reference.mkdir(parents=True)
    workload.prepare(reference, count)
    for number in range(settings.rounds + 1):
        wanted = digest(workload.run(reference, count, number))
        for system in systems:
            measured = _run_round(workload, system, count, number, wanted)
            if number:
                rounds[system.name].append(measured)
            say(
                f"{workload.name}: round {number} of {settings.rounds}: {system.name} "
                f"{measured.value:.4g} {workload.unit}, {measured.requests} requests"
                + ("" if measured.verified else ", WRONG")
            )
    for system in systems:
        if contents(lower / system.name / workload.name) != contents(reference):
            say(f"{workload.name}: {system.name} left other files than it should: WRONG")
            rounds[system.name] = [replace(r, verified=False) for r in rounds[system.name]]
    return rounds


def _run_round(workload: Workload, system: System, count: int, number: int, wanted: str) -> _Round:
    directory = system.root / workload.name
    before = system.usage()
    begin_ns = time.perf_counter_ns()
    seen = workload.run(directory, count, number)
    took_ns = time.perf_counter_ns() - begin_ns
    after = system.usage()
    value = took_ns / 1e9 if workload.unit == "s" else took_ns / 1e3 / count
    return _Round(
        value=value,
        requests=after.total - before.total,
        switches=after.switches - before.switches,
        verified=digest(seen) == wanted,
        before=before,
        after=after,
    )


def _result(workload: Workload, system: str, settings: Settings, rounds: list[_Round]) -> Result:
    values = tuple(r.value for r in rounds)
    return Result(
        workload=workload.name,
        system=system,
        daemon=settings.daemon,
        value=statistics.median(values),
        unit=workload.unit,
        better="lower",
        rounds=values,
        daemon_requests=round(statistics.median(r.requests for r in rounds)),
        context_switches=round(statistics.median(r.switches for r in rounds)),
        verified=all(r.verified for r in rounds),
    )


def _kernel_counters(rounds: list[_Round]) -> dict[str, int]:
    """Return what the kernel counted over all measured rounds, with what the daemon counted."""
    first, last = rounds[0].before, rounds[-1].after
    if first.sample is None or last.sample is None:
        return {}
    change = last.sample.total - first.sample.total
    return {
        "requests": change.requests,
        "hits": change.hits,
        "daemon": change.daemon,
        "daemon_by_handlers": last.total - first.total,
    }
