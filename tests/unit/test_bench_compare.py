# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse bench compare``: what became better or worse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from efuse.bench import Result
from efuse.bench.compare import Change, compared
from efuse.cli.main import main
from efuse.errors import UsageError
from tests.unit.bench_reports import READ, made, read, result, scaled

FAST = result("t1", "efuse", (100.0, 110.0, 120.0))


def change(first: Result, second: Result) -> Change:
    (found,) = compared(made(first), made(second)).changes
    return found


def with_rounds(*rounds: float) -> Result:
    return result("t1", "efuse", rounds)


def test_higher_value_of_a_rate_is_better() -> None:
    found = change(FAST, with_rounds(200.0, 220.0, 240.0))
    assert (found.first, found.second, found.ratio) == (110.0, 220.0, 2.0)
    assert (found.min, found.max) == (200 / 120, 240 / 100)
    assert found.verdict == "better" and not found.failed(0.0)


def test_lower_value_of_a_latency_is_better() -> None:
    first = replace(FAST, better="lower", unit="us")
    found = change(first, replace(first, rounds=(50.0, 55.0, 60.0)))
    assert (found.ratio, found.min, found.max) == (2.0, 100 / 60, 120 / 50)
    assert found.verdict == "better"


def test_worse_result_fails_if_it_exceeds_the_tolerance() -> None:
    found = change(FAST, with_rounds(90.0, 93.5, 99.0))
    assert (found.ratio, found.verdict) == (0.85, "worse")
    assert found.failed(0.14) and not found.failed(0.16)


def test_rounds_that_overlap_are_noise() -> None:
    found = change(FAST, with_rounds(10.0, 20.0, 100.0))
    assert found.verdict == "noise" and not found.failed(0.05)


def test_unverified_result_fails_even_if_it_is_faster() -> None:
    found = change(FAST, replace(FAST, rounds=(900.0,), verified=False))
    assert found.verdict == "wrong" and found.failed(0.05)


def test_measures_are_compared_too() -> None:
    first, second = scaled(1, "efuse", 10.0, 40.0), scaled(1, "efuse", 10.0, 400.0)
    value, latency = compared(made(first), made(second)).changes
    assert (value.measure, value.verdict) == ("value", "noise")
    assert (latency.measure, latency.ratio, latency.verdict) == ("latency_p99", 0.1, "worse")


def test_reports_of_different_clocks_fails() -> None:
    with pytest.raises(UsageError, match="one uses time, the other instructions"):
        compared(made(FAST), made(FAST, clock="instructions"))


def test_reports_without_a_common_workload_fails() -> None:
    with pytest.raises(UsageError, match="they share no workload"):
        compared(made(FAST), made(replace(FAST, daemon="passthrough_ll")))


def test_results_with_different_units_are_not_compared() -> None:
    with pytest.raises(UsageError, match="they share no workload"):
        compared(made(FAST), made(replace(FAST, unit="MiB/s")))


def test_different_settings_and_machines_are_warned_of() -> None:
    first, second = made(FAST, rounds=3), made(FAST, rounds=5)
    second["kernel"] = "6.13"
    second["machine"]["cpus"] = 4
    second["versions"] = {"efuse": "2"}
    assert compared(first, second).warnings == (
        "machine cpus differs: 2 and 4",
        "settings rounds differs: 3 and 5",
        "kernel differs: 6.12 and 6.13",
        "version of efuse differs: 1 and 2",
    )
    assert compared(first, first).warnings == ()


def test_result_of_one_report_only_is_warned_of() -> None:
    other, empty = (result(name, "fuse", (float(name == "t2"),)) for name in ("t2", "t3"))
    found = compared(made(FAST, other, empty), made(FAST, empty, result("t4", "fuse", (1.0,))))
    assert [change.workload for change in found.changes] == ["t1"]
    assert found.warnings == (
        "only in the first report: t2 on fuse",
        "only in the second report: t4 on fuse",
        "not compared, since its first value is 0: t3 on fuse",
    )


# The command


def compare(tmp_path: Path, first: dict[str, Any], second: dict[str, Any], *words: str) -> int:
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file, value in zip(files, (first, second), strict=True):
        file.write_text(json.dumps(value))
    with pytest.raises(SystemExit) as caught:
        main(["bench", "compare", *map(str, files), *words])
    return int(caught.value.code or 0)


SLOW = with_rounds(80.0, 88.0, 96.0)


def test_exit_status_says_whether_something_is_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, made(FAST), made(SLOW)) == 1
    line = " ".join(capsys.readouterr().out.splitlines()[1].split())
    assert line == "t1 efuse value 110 iops 88 iops 0.8 x (0.667-0.96) WORSE"
    assert compare(tmp_path, made(FAST), made(SLOW), "--within", "25%") == 0
    assert capsys.readouterr().out.split()[-1] == "worse"
    assert compare(tmp_path, made(SLOW), made(FAST)) == 0


def test_json_has_the_rows_of_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(tmp_path, made(FAST), made(SLOW, lower="slow-link"), "--json") == 1
    value = json.loads(capsys.readouterr().out)
    assert (value["clock"], value["within"]) == ("time", 0.05)
    assert value["warnings"] == ["settings lower differs: None and slow-link"]
    (found,) = value["changes"]
    assert (found["ratio"], found["verdict"], found["failed"]) == (0.8, "worse", True)


def test_report_compared_with_itself_has_ratio_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "compare", str(READ), str(READ), "--json"])
    assert caught.value.code in (None, 0)
    found = json.loads(capsys.readouterr().out)["changes"]
    assert len(found) == len(read()["results"])
    assert {(one["ratio"], one["verdict"]) for one in found} == {(1.0, "noise")}


@pytest.mark.parametrize("within", ["much", "-1%", "100%", "nan%"])
def test_malformed_tolerance_fails(tmp_path: Path, within: str) -> None:
    assert compare(tmp_path, made(FAST), made(FAST), f"--within={within}") == 2


def test_different_clocks_are_a_usage_error(tmp_path: Path) -> None:
    assert compare(tmp_path, made(FAST), made(FAST, clock="instructions")) == 2
