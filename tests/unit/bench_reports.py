# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reports of benchmarks for tests: parts of measured ones, and made-up ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from efuse.bench import Report, Result, RoundCounters, Series
from efuse.bench.stored import load

DATA = Path(__file__).parents[1] / "data"
READ = DATA / "bench-read.json"
STORAGE = DATA / "bench-storage.json"

_RESULT = Result("t1", "fuse", "passthrough", 1.0, "iops", "higher", (1.0,), 3, 4, True)


def result(workload: str, system: str, rounds: tuple[float, ...], **others: Any) -> Result:
    middle = sorted(rounds)[len(rounds) // 2]
    made = replace(_RESULT, workload=workload, system=system, value=middle, rounds=rounds)
    return replace(made, **others)


def made(*results: Result, **settings: Any) -> dict[str, Any]:
    """Return a report in the form that ``--json`` writes, with the ratios of eFuse's systems."""
    of = dict.fromkeys(r.system for r in results if r.system.startswith("efuse"))
    empty = Report({"cpus": 2}, "6.12", {"efuse": "1"}, {"clock": "time", **settings}, ())
    value: dict[str, Any] = json.loads(json.dumps(empty.extended(results, of).json()))
    return value


def scaled(threads: int, system: str, per_second: float, p99_us: float) -> Result:
    found = (per_second, per_second * 0.9, per_second * 1.1)
    times = (p99_us, p99_us * 2, p99_us / 2)
    measures = {"latency_p99": Series(p99_us, "us", times)}
    return result(f"scale-stat-{threads}", system, found, measures=measures)


def counted(workload: str, *rounds: Mapping[str, int]) -> Result:
    """Return a result on eFuse. The kernel answered half of the requests, by the given paths."""
    counters = tuple(
        RoundCounters(2 * sum(paths.values()), sum(paths.values()), sum(paths.values()), {**paths})
        for paths in rounds
    )
    values = tuple(float(n) for n in range(1, len(rounds) + 1))
    return result(workload, "efuse", values, rounds_counters=counters)


def read() -> dict[str, Any]:
    return load(READ)


def storage() -> dict[str, Any]:
    return load(STORAGE)
