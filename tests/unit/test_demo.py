# SPDX-License-Identifier: LGPL-2.1-or-later
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from efuse import demo
from efuse.bench.usage import Usage
from efuse.demo import PROGRAMS
from efuse.stats import Counters, Sample

NOTHING = Usage({"lookup": 5, "forget": 100}, 7, Sample(41, 1))


def made(
    system: str, seconds: float, requests: int, hits: int, digest: str = "right"
) -> list[demo.Run]:
    counters = {"lookup": Counters(requests=requests + hits, hits=hits, daemon=requests)}
    after = Usage({"lookup": 5 + requests, "forget": 200}, 17, Sample(41, 2, opcodes=counters))
    before = NOTHING
    if system in ("ext4", "fuse"):
        before, after = replace(before, sample=None), replace(after, sample=None)
    return [demo.Run(program, system, seconds, digest, before, after) for program in PROGRAMS]


def reported(monkeypatch: pytest.MonkeyPatch, first: str = "right") -> demo.Report:
    monkeypatch.setattr("efuse.demo.versions", dict)
    runs = made("fuse", 20, 1000, 0) + made("efuse-first", 15, 500, 500, first)
    runs += made("efuse", 2, 10, 990) + made("ext4", 1, 0, 0)
    return demo.report(runs, 3800)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> demo.Report:
    return reported(monkeypatch)


def shown(report: demo.Report) -> list[str]:
    out = io.StringIO()
    value = json.loads(json.dumps(report.json()))
    Console(file=out, width=100).print(demo.table(value))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_table_has_a_line_for_each_program(report: demo.Report) -> None:
    lines = shown(report)
    assert len(lines) == 1 + len(PROGRAMS)
    assert lines[1] == "find 1.0 s 20.0 s 1000 15.0 s 500 2.0 s 10 99.0% 10.0 x same"


def test_table_says_which_output_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(reported(monkeypatch, "wrong"))
    assert all(line.endswith("WRONG") for line in lines[1:])


def test_forget_is_not_counted_as_a_waiting_request(report: demo.Report) -> None:
    assert {r.daemon_requests for r in report.results} == {1000, 500, 10, 0}
    assert {r.context_switches for r in report.results} == {10}


def test_ratios_are_of_the_warm_mount(report: demo.Report) -> None:
    over_fuse = {r.workload: r.median for r in report.ratios if r.over == "fuse"}
    assert over_fuse == dict.fromkeys(PROGRAMS, 10.0)
