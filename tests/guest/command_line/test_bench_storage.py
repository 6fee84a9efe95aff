# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the storage function workloads of ``efuse bench`` at a small scale."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse.bench import storage
from efuse.csd import PROFILES, devices
from tests.guest.support import csd_device
from tests.guest.support.forked import efuse

FIRST, *OTHERS = PROFILES
"""A profile for all workloads, and those for one workload: they differ only in their numbers."""


@pytest.fixture(autouse=True)
def _csd_is_loaded() -> Iterator[None]:
    csd_device.load()
    yield
    assert not devices(), "a device was left"
    csd_device.unload()


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that leaves out all profiles except the given ones, also in commands."""

    def leave(*profiles: str) -> None:
        monkeypatch.setattr(storage, "PROFILES", {name: PROFILES[name] for name in profiles})

    return leave


def _results(tmp_path: Path, *words: str) -> dict[tuple[str, str], Any]:
    out = tmp_path / "report.json"
    efuse("bench", "--rounds", "1", "--scale", "0.0001", "--json", str(out), *words)
    report = json.loads(out.read_text())
    assert set(report["settings"]["profiles"]) == set(storage.PROFILES)
    assert all(r["verified"] and r["value"] > 0 for r in report["results"])
    return {(r["workload"], r["system"]): r["measures"] for r in report["results"]}


def test_bench_runs_on_a_device_of_each_profile(tmp_path: Path, only: Callable[..., None]) -> None:
    only(*OTHERS)
    found = _results(tmp_path, "--workload", "aggregate", "--system", "device,kernel")
    assert len(found) == len(OTHERS) * 2 * 2
    assert {workload.rsplit("-", 3)[0] for workload, _ in found} == set(OTHERS)


def test_bench_scans_at_the_named_place(tmp_path: Path, only: Callable[..., None]) -> None:
    only(FIRST)
    found = _results(tmp_path, "--workload", "scan,select,aggregate")
    assert len(found) == 3 * 2 * 4
    for (workload, place), measures in found.items():
        _, kind, _, state = workload.rsplit("-", 3)
        looked = [measures[name]["value"] for name in ("device_steps", "kernel_steps")]
        if place != "auto":
            assert looked == [16 * (place == "device"), 16 * (place == "kernel")]
        link = measures["link_bytes"]["value"]
        if place == "device":
            # Only the function's output crosses the link, and no block.
            assert 0 < link <= (64 << 10) // 50 if kind == "select" else link < 100
        elif state == "warm":
            assert place == "auto" or link == 0
        elif place != "auto":
            assert link >= 64 << 10


def test_bench_looks_up_at_the_named_place(tmp_path: Path, only: Callable[..., None]) -> None:
    only(FIRST)
    found = _results(tmp_path, "--workload", "lookup", "--system", "device,kernel")
    assert len(found) == 6 * 2 * 2
    for (workload, place), measures in found.items():
        _, _, depth, state = workload.rsplit("-", 3)
        looked = {name: measures[name]["value"] for name in measures if name != "link_bytes"}
        # Plus the block of the header.
        blocks = int(depth) + 1
        assert looked["device_steps"] == blocks * (place == "device")
        assert looked["kernel_steps"] == blocks * (place == "kernel")
        if place == "kernel":
            assert looked["chained"] == blocks * (state == "cold")
