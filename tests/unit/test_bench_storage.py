# SPDX-License-Identifier: LGPL-2.1-or-later
"""The workloads of storage functions: arguments, lookups with pread(2), table, plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from efuse.bench import Settings, check_storage, is_storage, plot, storage_table
from efuse.bench.lookup import FANOUT, lookups, tree, write_tree
from efuse.bench.storage import sizes
from efuse.cli.main import main
from efuse.errors import EfuseError, UsageError

MIB = 1 << 20


def test_storage_workloads_with_others_fail() -> None:
    assert is_storage(("scan", "lookup"))
    assert not is_storage(("stat",))
    with pytest.raises(UsageError, match="scan cannot be measured together with others"):
        is_storage(("scan", "stat"))


@pytest.mark.parametrize(
    ("settings", "output"),
    [
        (Settings(("scan",), systems=("device", "fuse")), "not measured on fuse"),
        (Settings(("lookup",), daemon="passthrough"), "not measured through passthrough"),
    ],
)
def test_storage_with_unsupported_settings_fails(settings: Settings, output: str) -> None:
    with pytest.raises(UsageError, match=output):
        check_storage(settings)


def test_plot_of_another_workload_than_storage_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--workload", "stat", "--plot", str(tmp_path / "plot.png")])
    assert "--plot draws" in capsys.readouterr().err


def test_sizes_grow_with_the_scale() -> None:
    assert sizes(0.0001) == [64 << 10]
    assert sizes(0.02) == [64 << 10, 512 << 10, 4 * MIB]
    assert sizes(1)[-1] == 256 * MIB


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_lookups_by_pread_find_all_values(depth: int, tmp_path: Path) -> None:
    items = tree(depth)
    # The header, and the nodes of each level.
    assert write_tree(tmp_path / "tree", depth) == 1 + sum(FANOUT**n for n in range(depth))
    keys = [0, 1, max(items), max(items) + 1, *list(items)[:: 1 + len(items) // 20]]
    found = lookups(tmp_path / "tree", "pread", keys, warm=1, direct=False)
    assert found.values == tuple(items.get(key, b"") for key in keys[1:])
    assert found.ns > 0
    assert (found.device_steps, found.kernel_steps, found.chained) == (0, 0, 0)


def test_lookups_in_a_file_without_a_tree_fail(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(8192))
    with pytest.raises(EfuseError, match="the lookups failed: lookup: no tree"):
        lookups(tmp_path / "f", "pread", [1, 2], warm=1, direct=False)


def _result(workload: str, system: str, rounds: list[float], link: float) -> dict[str, Any]:
    return {
        "workload": workload,
        "system": system,
        "value": sorted(rounds)[len(rounds) // 2],
        "rounds": rounds,
        "verified": system != "daemon",
        "measures": {"link_bytes": {"value": link}},
    }


@pytest.fixture
def report() -> dict[str, Any]:
    results = []
    for workload in (
        "slow-link-scan-64K-cold",
        "slow-link-scan-4M-cold",
        "low-latency-lookup-2-warm",
    ):
        for system, first in (
            ("device", 100.0),
            ("kernel", 200.0),
            ("daemon", 50.0),
            ("auto", 110.0),
        ):
            results.append(_result(workload, system, [first, first, 2 * first], first))
    return {"results": results}


def test_table_compares_with_the_better_place(report: dict[str, Any]) -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(storage_table(report))
    head, first, *rest = captured.get().splitlines()
    assert head.split()[:3] == ["WORKLOAD", "DEVICE", "us"]
    wanted = ["slow-link-scan-64K-cold", "100", "200", "50", "110", "0.91", "(0.91-0.91)"]
    assert first.split() == [*wanted, "100", "NO"]
    assert len(rest) == 2


def test_plot_is_written_as_png(report: dict[str, Any], tmp_path: Path) -> None:
    plot(report, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
