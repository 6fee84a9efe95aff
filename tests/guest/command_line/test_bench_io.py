# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run ``efuse bench`` with data at a small scale: the data is right and took the expected path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from efuse.bench import SYSTEMS
from tests.guest.support.forked import efuse


def _report(daemon: str, tmp_path: Path, systems: tuple[str, ...]) -> Any:
    out = tmp_path / "report.json"
    words = ["--rounds", "1", "--scale", "0.01", "--json", str(out)]
    words += ["--workload", "t1-single", "--daemon", daemon]
    efuse("bench", *words, "--system", ",".join(systems))
    return json.loads(out.read_text())


def test_bench_reads_and_writes_without_the_daemon(tmp_path: Path) -> None:
    report = _report("passthrough_backing", tmp_path, SYSTEMS)
    results = {r["system"]: r for r in report["results"]}
    assert set(results) == set(SYSTEMS)
    assert all(r["verified"] and r["value"] > 0 for r in results.values())
    ran = results["efuse"]
    assert ran["paths"]["direct"] > 0, "the fast path did not run"
    assert ran["paths"]["daemon"] == 0
    assert [counted["paths"] for counted in ran["rounds_counters"]] == [ran["paths"]]
    assert results["fuse"]["paths"] == {} and results["fuse"]["rounds_counters"] == []
    assert results["fuse"]["daemon_requests"] > 0
    copied = {name: r["measures"]["bytes_copied"]["value"] for name, r in results.items()}
    assert copied["ext4"] == 0
    assert copied["efuse"] < copied["fuse"]
    # What a request brought to the daemon, and its reply, were headers: none had a block of 4 KiB.
    assert copied["efuse"] * (1 << 20) < 512 * ran["daemon_requests"]


def test_bench_runs_an_unmodified_daemon(tmp_path: Path) -> None:
    (ran,) = _report("passthrough_ll", tmp_path, ("efuse",))["results"]
    assert ran["verified"]
    assert ran["daemon"] == "passthrough_ll"
    # The daemon maps no files, so all data goes through it.
    assert ran["paths"]["direct"] == 0 and ran["paths"]["daemon"] > 0
