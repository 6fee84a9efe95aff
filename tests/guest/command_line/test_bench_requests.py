# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the request workloads of ``efuse bench`` at a small scale: requests took the right path."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from efuse.bench import BALANCED, transport
from efuse.bench.load import load, prepare
from efuse.bench.transport import TRANSPORTS, transported
from efuse.errors import EfuseError
from tests.guest.support.forked import efuse

# One caller, and more callers than CPUs. tests/unit tests which workloads ``scale`` stands for.
_SCALE = ("scale-read-1", "scale-stat-4")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("bench") / "report.json"
    words = ["--rounds", "2", "--scale", "0.02", "--json", str(out)]
    assert "LATENCY" in efuse("bench", *words, "--workload", ",".join((*_SCALE, "skew")))
    return json.loads(out.read_text())


def _only(report: Any, workloads: str) -> Any:
    """Return the parts of a report about the workloads whose names begin with *workloads*."""
    parts = ("results", "ratios")
    return {
        part: [r for r in report[part] if r["workload"].startswith(workloads)] for part in parts
    }


@pytest.fixture(scope="module")
def scale(report: Any) -> Any:
    """Return the results of the scale workloads."""
    return _only(report, "scale-")


@pytest.fixture(scope="module")
def skew(report: Any) -> Any:
    return _only(report, "skew")


def test_scale_measures_each_transport(scale: Any) -> None:
    assert {(r["workload"], r["system"]) for r in scale["results"]} == {
        (workload, system) for workload in _SCALE for system in TRANSPORTS
    }


def test_scale_verifies_and_has_all_measures(scale: Any) -> None:
    for result in scale["results"]:
        assert result["verified"] and result["value"] > 0
        assert result["daemon"] == "passthrough_ll" and result["daemon_requests"] > 0
        measures = result["measures"]
        assert 0 < measures["latency_p50"]["value"] <= measures["latency_p99"]["value"]
        if "stat" in result["workload"]:
            for name in ("p50", "p99"):
                queueing, latency = measures[f"queueing_{name}"], measures[f"latency_{name}"]
                assert 0 < queueing["value"] < latency["value"]
        assert len(measures["daemon_switches"]["rounds"]) == 2
        # In these systems callers do not poll for an answer but sleep.
        if result["system"] != "efuse":
            assert measures["caller_switches"]["value"] > 0


def test_scale_has_ratios_of_all_measures(scale: Any) -> None:
    measures = ("value", "latency_p99", "queueing_p99", "switches")
    over = {(r["over"], r["measure"]) for r in scale["ratios"] if r["of"] == "efuse"}
    for system in TRANSPORTS[:-1]:
        assert {(system, name) for name in measures} <= over


def test_skew_is_balanced_except_by_policy_own(skew: Any) -> None:
    results = {r["system"]: r for r in skew["results"]}
    assert set(results) == set(BALANCED)
    assert all(result["verified"] for result in results.values())
    assert results["fuse"]["channels"] == []
    moved = {}
    for name in ("efuse-own", "efuse-bpf", "efuse"):
        first, second = results[name]["channels"]
        assert first["sent"] + second["sent"] >= results[name]["daemon_requests"]
        moved[name] = sum(cpu["elsewhere"] + cpu["stolen"] for cpu in (first, second))
    assert moved["efuse-own"] == 0
    assert moved["efuse"] > 0 and moved["efuse-bpf"] > 0, "nothing was balanced"


# How the transport is verified


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "source"
    directory.mkdir()
    prepare(directory / "file")
    yield directory


def _proven(name: str, source: Path, mountpoint: Path) -> None:
    with transported(name, source, mountpoint) as system:
        before = system.usage()
        found = load(system.root / "file", "read", 4096, 200, [0, 1])
        system.prove(before, system.usage(), found.requests)


@pytest.mark.parametrize("name", TRANSPORTS)
def test_transport_is_proven_by_its_counters(name: str, source: Path, mountpoint: Path) -> None:
    _proven(name, source, mountpoint)


@pytest.mark.parametrize(
    ("claimed", "used"),
    [
        ("fuse", "fuse-clone-fd"),
        ("fuse-clone-fd", "fuse"),
        ("efuse-queues", "efuse"),
        ("efuse", "efuse-queues"),
    ],
)
def test_proof_of_another_transport_than_claimed_fails(
    claimed: str, used: str, source: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = transport._words

    def others(_name: str, source: Path, mountpoint: Path, daemon: str) -> Sequence[str]:
        return words(used, source, mountpoint, daemon)

    monkeypatch.setattr(transport, "_words", others)
    with pytest.raises(EfuseError, match=f"{claimed} was not measured"):
        _proven(claimed, source, mountpoint)


def test_proof_of_requests_answered_in_the_kernel_fails(
    source: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_OPTIONS", "cache=always,timeout=3600")
    with pytest.raises(EfuseError, match="reached the daemon"):
        _proven("efuse", source, mountpoint)
