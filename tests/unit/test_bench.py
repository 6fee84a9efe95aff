# SPDX-License-Identifier: LGPL-2.1-or-later
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from efuse.bench import METADATA, Report, Result, RoundCounters, Series, measure_tables, table
from efuse.bench.report import ratios
from efuse.bench.rounds import Round
from efuse.bench.run import _rounds_counters
from efuse.bench.usage import Usage
from efuse.bench.workloads import contents, digest
from efuse.cli.main import main
from efuse.stats import Counters, Sample

FUSE = Result(
    "stat", "fuse", "passthrough", 800.0, "us", "lower", (790.0, 800.0, 900.0), 300, 9, True
)
EFUSE = replace(FUSE, system="efuse", value=20.0, rounds=(10.0, 20.0, 30.0), daemon_requests=0)


def report() -> dict[str, object]:
    results = (FUSE, EFUSE)
    made = Report({}, "6.12", {}, {}, results, ratios(results))
    value: dict[str, object] = json.loads(json.dumps(made.json()))
    return value


def test_ratios_are_taken_round_by_round() -> None:
    (ratio,) = ratios([FUSE, EFUSE])
    assert (ratio.of, ratio.over) == ("efuse", "fuse")
    assert (ratio.median, ratio.min, ratio.max) == (40.0, 30.0, 79.0)


def test_ratio_above_one_is_better_for_every_unit() -> None:
    fuse = replace(FUSE, unit="iops", better="higher", rounds=(100.0,))
    (ratio,) = ratios([fuse, replace(fuse, system="efuse", rounds=(250.0,))])
    assert ratio.median == 2.5


def test_ratios_compare_only_the_same_workload_and_daemon() -> None:
    assert ratios([replace(FUSE, workload="xattr"), replace(FUSE, daemon="sshfs"), EFUSE]) == ()


def test_table_leaves_out_ratios_of_other_systems_than_efuse() -> None:
    forced = replace(EFUSE, system="efuse-direct", rounds=(1.0, 1.0, 1.0))
    results = (FUSE, EFUSE, forced)
    every = (*ratios(results), *ratios(results, "efuse-direct"))
    made = table(Report({}, "6.12", {}, {}, results, every).json())
    assert list(made.columns[5].cells) == ["40 x (30-79)", "", "0.05 x (0.0333-0.1)"]


def test_ratios_of_unequal_rounds_fails() -> None:
    with pytest.raises(ValueError):
        ratios([FUSE, replace(EFUSE, rounds=(1.0,))])


def test_ratios_of_measures_are_above_one_where_less_was_found() -> None:
    fuse, efuse = measured("fuse", (10.0, 12.0)), measured("efuse", (5.0, 4.0))
    value, measure = ratios([fuse, efuse])
    assert (value.measure, value.median) == ("value", 1.0)
    assert (measure.measure, measure.median) == ("latency_p99", 2.5)
    assert (measure.min, measure.max) == (2.0, 3.0)


@pytest.mark.parametrize("none", ["fuse", "efuse"])
def test_measure_with_the_value_0_has_no_ratio(none: str) -> None:
    results = [measured(s, (0.0 if s == none else 2.0, 1.0)) for s in ("fuse", "efuse")]
    assert [ratio.measure for ratio in ratios(results)] == ["value"]


def measured(system: str, values: tuple[float, ...]) -> Result:
    series = Series(values[0], "us", values)
    same = replace(FUSE, workload="skew", system=system, rounds=(1.0, 1.0))
    return replace(same, measures={"latency_p99": series})


def test_measures_are_printed_in_separate_tables() -> None:
    results = (measured("fuse", (10.0, 12.0)), measured("efuse", (5.0, 4.0)))
    made = Report({}, "6.12", {}, {}, (FUSE, *results), ratios(results))
    out = io.StringIO()
    values, times = measure_tables(json.loads(json.dumps(made.json())))
    Console(file=out, width=80).print(values, times)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines[1:3] == ["skew fuse 10", "skew efuse 5"]
    assert lines[4:] == ["skew fuse 2.5 x (2-3)"]


def test_measure_missing_from_a_workload_has_an_empty_cell() -> None:
    first = measured("fuse", (10.0, 12.0))
    other = replace(first, measures={"queueing_p99": Series(3.0, "us", (3.0, 3.0))})
    (values,) = measure_tables(Report({}, "", {}, {}, (first, other), ()).json())
    assert [list(column.cells) for column in values.columns[2:]] == [["10", ""], ["", "3"]]


def test_uncompared_measure_has_a_value_and_no_ratio() -> None:
    series = {"daemon_preempted": Series(1.0, "/req", (1.0,), compared=False)}
    results = [replace(FUSE, system=s, measures=series) for s in ("fuse", "efuse")]
    found = ratios(results)
    assert [ratio.measure for ratio in found] == ["value"]
    assert len(measure_tables(Report({}, "", {}, {}, tuple(results), found).json())) == 1


def test_tables_of_measures_give_all_in_full_in_80_columns() -> None:
    names = ("latency_p50", "latency_p99", "queueing_p50", "queueing_p99", "switches")
    wide = {name: Series(-1.234e-5, "us", (1.2345,) * 3) for name in names}
    over = replace(FUSE, workload="scale-stat-128", system="fuse-clone-fd", measures=wide)
    results = (over, replace(over, system="efuse"))
    out = io.StringIO()
    made = Report({}, "", {}, {}, results, ratios(results))
    Console(file=out, width=80).print(*measure_tables(made.json()))
    assert out.getvalue().count("scale-stat-128") == 2 * 2 + 2  # two tables of each kind
    assert out.getvalue().count("-1.234e-05") == 10 and "…" not in out.getvalue()
    assert out.getvalue().count("1 x") == 5


def test_without_measures_there_is_no_table_of_them() -> None:
    assert measure_tables(report()) == []


def test_counters_are_kept_round_by_round() -> None:
    first, second, third = (
        Usage(sample=Sample(7, 0, opcodes={"read": counted}), paths={"direct": direct})
        for counted, direct in (
            (Counters(requests=5, hits=3, daemon=2), 1),
            (Counters(requests=15, hits=10, daemon=5), 6),
            (Counters(requests=16, hits=11, daemon=5), 7),
        )
    )
    rounds = [Round(1.0, 0, 0, True, *pair, {}) for pair in ((first, second), (second, third))]
    assert _rounds_counters(rounds) == (
        RoundCounters(10, 7, 3, {"direct": 5}),
        RoundCounters(1, 1, 0, {"direct": 1}),
    )


def test_plain_fuse_has_no_counters_of_rounds() -> None:
    assert _rounds_counters([Round(1.0, 0, 0, True, Usage(), Usage(), {})]) == ()


def test_json_has_the_documented_shape() -> None:
    value = report()
    assert list(value) == ["machine", "kernel", "versions", "settings", "results", "ratios"]
    results = value["results"]
    assert isinstance(results, list)
    assert list(results[0]) == [
        "workload",
        "system",
        "daemon",
        "value",
        "unit",
        "better",
        "rounds",
        "daemon_requests",
        "context_switches",
        "verified",
        "paths",
        "channels",
        "measures",
        "rounds_counters",
    ]


def test_table_is_made_from_the_json() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(table(report()))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines[1] == "stat fuse 800 us 300 9 40 x (30-79) yes"
    assert lines[2] == "stat efuse 20 us 0 9 yes"


def test_table_gives_names_in_full_in_80_columns() -> None:
    out = io.StringIO()
    wide = replace(FUSE, workload="t3-large-512k", system="efuse-direct", value=-1.234e-5)
    wide = replace(wide, daemon_requests=10**9, context_switches=10**9)
    slow = replace(wide, system="efuse", rounds=(1.234e-5,) * len(wide.rounds))
    Console(file=out, width=80).print(table(Report({}, "", {}, {}, (wide, slow)).json()))
    assert out.getvalue().count("t3-large-512k") == 2
    assert "efuse-direct" in out.getvalue() and "…" not in out.getvalue()


def test_table_marks_unverified_results() -> None:
    out = io.StringIO()
    value = Report({}, "", {}, {}, (replace(FUSE, verified=False),)).json()
    Console(file=out, width=120).print(table(value))
    assert out.getvalue().splitlines()[1].split()[-1] == "NO"


@pytest.fixture(params=METADATA)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def prepared(directory: Path, name: str) -> Path:
    directory.mkdir()
    try:
        METADATA[name].prepare(directory, 40)
    except OSError as e:
        if name != "xattr":
            raise
        pytest.xfail(f"no xattrs of users here: {e}")
    return directory


def test_workload_sees_the_same_in_two_copies(tmp_path: Path, name: str) -> None:
    one, other = prepared(tmp_path / "one", name), prepared(tmp_path / "other", name)
    run = METADATA[name].run
    assert digest(run(one, 40, 1)) == digest(run(other, 40, 1))
    assert contents(one) == contents(other)


def test_workload_can_be_run_again(tmp_path: Path, name: str) -> None:
    one, other = prepared(tmp_path / "one", name), prepared(tmp_path / "other", name)
    run = METADATA[name].run
    for number in range(2):
        assert digest(run(one, 40, number)) == digest(run(other, 40, number))
    assert contents(one) == contents(other)


@pytest.mark.parametrize("name", ["stat", "open-close", "tree-walk"])
def test_workload_notices_a_wrong_size(tmp_path: Path, name: str) -> None:
    one, other = prepared(tmp_path / "one", name), prepared(tmp_path / "other", name)
    victim = next(p for p in sorted(other.rglob("*")) if p.is_file() and ".git" not in p.parts)
    with victim.open("ab") as f:
        f.write(b"!" * 3000)
    run = METADATA[name].run
    assert digest(run(one, 40, 1)) != digest(run(other, 40, 1))


def test_contents_notices_a_changed_byte(tmp_path: Path) -> None:
    one, other = prepared(tmp_path / "one", "stat"), prepared(tmp_path / "other", "stat")
    st = (other / "file").stat()
    data = bytearray((other / "file").read_bytes())
    data[1000] ^= 1
    (other / "file").write_bytes(data)
    os.utime(other / "file", ns=(st.st_atime_ns, st.st_mtime_ns))
    assert contents(one) != contents(other)


@pytest.mark.parametrize(
    "arguments",
    [("--workload", "nothing"), ("--workload", ","), ("--system", "ntfs"), ("--rounds", "0")],
)
def test_bench_with_an_invalid_value_fails(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", *arguments])
    assert caught.value.code == 2
    assert "Error: Invalid value" in capsys.readouterr().err
