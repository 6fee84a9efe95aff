# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run ``efuse bench`` with data at a small scale: the data is right and took the expected path."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from tests.guest.support.forked import efuse


def _results(workloads: str, daemon: str, tmp_path: Path, *systems: str) -> list[dict[str, Any]]:
    out = tmp_path / "report.json"
    words = ["--rounds", "1", "--scale", "0.01", "--json", str(out)]
    words += ["--workload", workloads, "--daemon", daemon]
    efuse("bench", *words, "--system", ",".join(systems))
    results = json.loads(out.read_text())["results"]
    assert {(r["workload"], r["system"]) for r in results} == set(
        itertools.product(workloads.split(","), systems)
    )
    assert all(r["verified"] and r["value"] > 0 for r in results)
    return list(results)


def test_bench_reads_and_writes_without_the_daemon(tmp_path: Path) -> None:
    """These workloads have one job: each job is a process, and they start slowly in a guest."""
    workloads = "seq-read", "seq-write"
    results = _results(",".join(workloads), "passthrough_backing", tmp_path, "fuse", "efuse")
    for workload in workloads:
        by_system = {r["system"]: r for r in results if r["workload"] == workload}
        ran = by_system["efuse"]
        # For a READ, the chooser may find that the data cache is as fast as the backing file.
        in_kernel = ran["paths"]["direct"] + ran["paths"]["cache"]
        assert in_kernel > 0, "the fast path did not run"
        assert ran["paths"]["daemon"] == 0
        assert [counted["paths"] for counted in ran["rounds_counters"]] == [ran["paths"]]
        plain = by_system["fuse"]
        assert plain["paths"] == {} and plain["rounds_counters"] == []
        assert plain["daemon_requests"] > 0
        copied = {name: r["measures"]["bytes_copied"]["value"] for name, r in by_system.items()}
        assert copied["efuse"] < copied["fuse"]
        # What a request brought to the daemon, and its reply, were headers: none had a block.
        assert copied["efuse"] * (1 << 20) < 512 * ran["daemon_requests"]


def test_bench_runs_an_unmodified_daemon(tmp_path: Path) -> None:
    (ran,) = _results("t1-single", "passthrough_ll", tmp_path, "efuse")
    assert ran["daemon"] == "passthrough_ll"
    # The daemon maps no files, so all data goes through it.
    assert ran["paths"]["direct"] == 0 and ran["paths"]["daemon"] > 0
