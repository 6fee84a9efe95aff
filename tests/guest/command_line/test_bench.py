# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run ``efuse bench`` at a small scale: the results are right, and the kernel answered."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from efuse.bench import METADATA
from efuse.bench.clock import CLOCKS
from tests.guest.support.forked import efuse

# The largest share of plain FUSE's requests that eFuse may need after the workload has run once.
_MOST_REQUESTS = {"stat": 0.01, "negative": 0.01, "open-close": 0.01, "tree-walk": 0.01}

# Compiling takes too long here, and so does a cold second walk. tests/unit covers all workloads.
_WORKLOADS = tuple(name for name in METADATA if name not in ("build", "tree-walk-cold"))
_SYSTEMS = ("fuse", "efuse")  # test_bench_io.py measures the others.

# The smallest tree has 10 files, and plain FUSE sends 1217 requests for a walk. eFuse may send 12:
# less than one for each file in two of the walk's four programs.
_SCALE = "0.002"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("bench") / "report.json"
    words = ["--rounds", "1", "--scale", _SCALE, "--json", str(out)]
    words += ["--system", ",".join(_SYSTEMS), "--workload", ",".join(_WORKLOADS)]
    printed = efuse("bench", *words)
    assert all(name in printed for name in _WORKLOADS)
    return json.loads(Path(out).read_text())


def _requests(report: Any, workload: str) -> dict[str, int]:
    results = [r for r in report["results"] if r["workload"] == workload]
    return {r["system"]: r["daemon_requests"] for r in results}


@pytest.mark.parametrize("workload", _WORKLOADS)
def test_bench_verifies_each_workload(report: Any, workload: str) -> None:
    results = [r for r in report["results"] if r["workload"] == workload]
    assert {r["system"] for r in results} == set(_SYSTEMS)
    assert all(r["verified"] for r in results)


@pytest.mark.parametrize("workload", _WORKLOADS)
def test_bench_on_efuse_sends_fewer_requests_to_the_daemon(report: Any, workload: str) -> None:
    requests = _requests(report, workload)
    assert requests["efuse"] <= requests["fuse"] * _MOST_REQUESTS.get(workload, 1)


def test_instructions_clock_counts_work() -> None:
    clock = CLOCKS["instructions"]
    before, began = clock(), time.thread_time_ns()
    while time.thread_time_ns() - began < 50_000_000:
        pass
    assert clock() - before >= 50_000_000
