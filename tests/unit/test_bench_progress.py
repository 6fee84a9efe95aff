# SPDX-License-Identifier: LGPL-2.1-or-later
"""The progress that ``efuse bench`` shows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from efuse.bench.lines import cell_line, done, round_line
from efuse.cli._bench_progress import LineSink, progress
from efuse.cli.main import main


def test_progress_line_names_the_finished_step() -> None:
    assert done(round_line("t1-single", 0, 5, "efuse", "1.2e+04 iops, 3 requests")) == "t1-single"
    assert done(cell_line("slow-link-scan-64K-cold", {"device": 12345.0, "auto": 0.1})) == (
        "slow-link-scan-64K-cold"
    )


@pytest.mark.parametrize(
    "line", ["", "t1-single: preparing the files for efuse", "guest: 6.12, 2 CPUs", "x: y is WRONG"]
)
def test_other_line_names_no_step(line: str) -> None:
    assert done(line) is None


def test_sink_passes_whole_lines() -> None:
    output: list[str] = []
    with LineSink(output.append) as sink:
        for part in (b"on", b"e\ntwo\nth", b"ree \xff"):
            assert sink.write(part) == len(part)
        assert output == ["one", "two"]
    assert output == ["one", "two", "three �"]


def test_progress_without_a_terminal_prints_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress({"t1": 2}) as say:
        say("t1: round 0 of 1: efuse 1 iops")
        say("something else [bold]")
    assert capsys.readouterr().err == "t1: round 0 of 1: efuse 1 iops\nsomething else [bold]\n"


def shown(*lines: str) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    with progress({"t1": 2, "t2": 2}, console) as say:
        for line in lines:
            say(line)
    return out.getvalue()


def bar(text: str) -> str:
    return [line for line in text.splitlines() if " left " in line][-1]


def test_a_terminal_shows_how_much_is_done_below_the_lines() -> None:
    text = shown("t1: round 0 of 1: efuse 1 iops", "t1: round 1 of 1: efuse 1 iops", "[x] t3")
    assert "t1: round 1 of 1: efuse 1 iops" in text and "[x] t3" in text
    assert "2/4" in bar(text)


def test_workload_finished_in_an_earlier_run_is_no_step() -> None:
    assert "0/4" in bar(shown("t9: round 0 of 1: efuse 1 iops"))


@pytest.mark.parametrize("name", ["report", "compare"])
def test_options_of_a_run_before_a_command_fails(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "--rounds", "3", name, "a.json", "b.json"])
    assert caught.value.code == 2
    assert f"{name} does not run workloads" in capsys.readouterr().err
