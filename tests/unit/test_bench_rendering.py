# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse bench report``: figures, tables and pages from a report's JSON."""

from __future__ import annotations

import itertools
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from efuse.bench import Result, Series
from efuse.bench.rendering.counters import counts
from efuse.bench.rendering.drawing import INK, write_png
from efuse.bench.rendering.grid import number, share, times
from efuse.bench.rendering.heading import heading
from efuse.bench.rendering.markdown import markdown
from efuse.bench.rendering.page import page
from efuse.bench.rendering.ratios import subject
from efuse.bench.rendering.scale import points
from efuse.bench.rendering.sections import Section, measure_grid, result_grid, sections
from efuse.bench.report import COPIED
from efuse.bench.stored import of_json
from efuse.cli.main import main
from efuse.errors import NotSupportedError
from tests.unit.bench_reports import READ, STORAGE, counted, made, read, result, scaled, storage

_VOID = {"meta", "link", "img", "br", "input", "use", "path"}
_EVIL = '<script>alert("$x$")</script>&|`'


class _Page(HTMLParser):
    """Checks that tags are nested properly; keeps tags, attributes and the cells of tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data


def named(report: dict[str, Any]) -> dict[str, Section]:
    return {section.name: section for section in sections(report)}


def data_report() -> dict[str, Any]:
    """Return a report with one of each thing that is drawn for data and requests."""
    return made(
        result("t1", "fuse", (10.0, 12.0)),
        counted("t1", {"direct": 30, "daemon": 10}, {"direct": 40, "daemon": 0}),
        *(scaled(n, s, 1000.0 * n, 50.0) for n in (1, 2) for s in ("fuse", "efuse")),
    )


# Numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (44789.9, "44 790"),
        (1234567.0, "1 235 000"),
        (0.71406, "0.7141"),
        (0, "0"),
        (999.96, "1 000"),
    ],
)
def test_numbers_have_four_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_ratios_have_three_digits_and_shares_one_decimal() -> None:
    assert (times(2.4791), times(0.7), times(12345.0)) == ("2.48", "0.7", "12 340")
    assert (share(1, 3), share(1, 0)) == ("33.3 %", "")


def test_result_table_equals_the_json() -> None:
    report = read()
    grid = result_grid(report)
    for row, one in zip(grid.rows, report["results"], strict=True):
        cells = dict(zip(grid.headers, row, strict=True))
        assert (cells["workload"], cells["system"]) == (one["workload"], one["system"])
        for name, value in (("value", one["value"]), ("max", max(one["rounds"]))):
            assert float(cells[name].replace(" ", "")) == pytest.approx(value, rel=1e-3)
        assert cells["true"] == "yes"


def test_ratio_table_equals_the_json() -> None:
    report = read()
    wanted = {
        (r["workload"], r["over"]): [r["median"], r["min"], r["max"]]
        for r in report["ratios"]
        if r["of"] == "efuse"
    }
    rows = named(report)["ratios"].grid.rows
    assert {(row[0], row[1]) for row in rows} == set(wanted)
    for row in rows:
        found = [float(cell) for cell in row[2:]]
        assert found == pytest.approx(wanted[row[0], row[1]], rel=1e-2)


def test_another_system_is_shown_if_efuse_is_not_there() -> None:
    fuse, forced = (result("t1", s, (1.0,)) for s in ("fuse", "efuse-direct"))
    assert subject(made(fuse, forced)) == "efuse-direct"
    assert subject(made(fuse)) is None


def test_scale_has_a_point_for_each_number_of_threads() -> None:
    found = points(data_report())
    assert [(p.threads, p.system, p.value, p.p99_us) for p in found] == [
        (1, "fuse", 1000.0, 50.0),
        (1, "efuse", 1000.0, 50.0),
        (2, "fuse", 2000.0, 50.0),
        (2, "efuse", 2000.0, 50.0),
    ]
    assert named(data_report())["scale"].grid.rows[2] == (
        *("stat", "2", "fuse", "2 000", "1 800", "2 200", "50"),
    )


def test_counter_tables_have_a_row_for_each_round() -> None:
    found = named(data_report())
    assert found["paths"].grid.headers[-2:] == ("direct", "daemon")
    assert found["paths"].grid.rows == [
        ("t1", "efuse", "1", "40", "75.0 %", "25.0 %"),
        ("t1", "efuse", "2", "40", "100.0 %", "0.0 %"),
    ]
    assert found["hits"].grid.rows[0] == ("t1", "efuse", "1", "80", "40", "50.0 %")


def test_counters_of_a_report_without_rounds_are_of_all_rounds_together() -> None:
    report = read()
    found = counts(report)
    assert {count.round for count in found} == {"all"}
    kernel = report["settings"]["kernel_counters"]
    for count in found:
        assert count.requests == kernel[f"{count.workload} {count.system}"]["requests"]


def test_measure_table_has_the_ratios_of_efuse() -> None:
    report = made(scaled(1, "fuse", 10.0, 40.0), scaled(1, "efuse", 10.0, 20.0))
    assert measure_grid(report).rows == [
        ("scale-stat-1", "fuse", "latency p99", "40", "us", "2 (2-2)"),
        ("scale-stat-1", "efuse", "latency p99", "20", "us", ""),
    ]


def test_heading_names_machine_kernel_and_settings() -> None:
    told = dict(heading(read()))
    assert told["clock"].startswith("instructions: ")
    assert told["machine"] == "a guest, QEMU Virtual CPU version 2.5+, 1 CPU, 3.8 GiB, x86_64"
    assert told["kernel"] == "6.12.117+deb12-amd64"
    assert told["workloads"] == "t1-single-read, seq-read"
    assert told["rounds"] == "5"


# Figures


@pytest.mark.parametrize("report", [read(), storage(), data_report()], ids=["read", "csd", "made"])
def test_figures_are_written_as_png(report: dict[str, Any], tmp_path: Path) -> None:
    for section in sections(report):
        write_png(section.draw, tmp_path / "figure.png")
        assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG"), section.name


def test_every_report_has_its_figures() -> None:
    assert list(named(read())) == ["ratios", "paths", "hits"]
    assert list(named(storage())) == ["places"]
    assert list(named(data_report())) == ["ratios", "scale", "paths", "hits"]
    assert sections(made(result("t1", "ext4", (1.0,)))) == []


def test_bars_have_the_lengths_of_the_ratios() -> None:
    axis = named(read())["ratios"].draw().axes[0]
    ends = sorted(patch.get_x() + patch.get_width() for patch in axis.patches)
    wanted = sorted(r["median"] for r in read()["ratios"] if r["of"] == "efuse")
    assert ends == pytest.approx(wanted)


def test_page_without_matplotlib_fails_with_an_install_hint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(NotSupportedError) as caught:
        page({"read": read()})
    assert caught.value.hint == "pip install 'efuse[plot]'"
    with pytest.raises(NotSupportedError):
        write_png(named(read())["ratios"].draw, tmp_path / "figure.png")
    assert "t1-single-read" in markdown({"read": read()})


# The page


@pytest.fixture(scope="module")
def text() -> str:
    return page({"read": read(), "storage": storage(), "made": data_report()})


def test_page_is_well_formed_and_has_a_table_next_to_each_figure(text: str) -> None:
    parsed = _Page(text)
    assert parsed.tags.count("svg") == parsed.tags.count("figure") == 8
    assert len(parsed.ids) == len(set(parsed.ids))
    (first, *_) = parsed.tables
    assert first[0] == ["workload", "over", "median", "min", "max"]
    assert [tuple(row) for row in first[1:]] == list(named(read())["ratios"].grid.rows)


def test_page_refers_to_nothing_outside(text: str) -> None:
    parsed = _Page(text)
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(parsed.tags)
    references = [v for name, v in parsed.attributes if name in ("src", "href", "xlink:href")]
    assert references and all(value.startswith("#") for value in references)
    assert set(references) <= {f"#{name}" for name in parsed.ids}
    assert all(url.startswith("#") for url in re.findall(r"url\((.*?)\)", text))
    assert "://" not in text and "@import" not in text


def test_page_uses_the_colours_of_the_readers_theme(text: str) -> None:
    figures = text[text.index("<svg") :]
    assert "currentColor" in figures and INK not in figures
    assert "prefers-color-scheme: dark" in text and "@media print" in text


def test_page_escapes_names() -> None:
    fuse, efuse = (result(_EVIL, s, (1.0, 2.0)) for s in ("fuse", "efuse"))
    report = made(fuse, efuse, lower=_EVIL)
    found = page({_EVIL: report})
    parsed = _Page(found)
    assert "script" not in parsed.tags
    assert parsed.tables[0][1][0] == _EVIL


def test_a_figure_shows_names_as_they_are() -> None:
    figure = named(made(*(result("a$b$<c", s, (1.0,)) for s in ("fuse", "efuse"))))["ratios"]
    assert "a$b$&lt;c" in page(
        {"x": made(*(result("a$b$<c", s, (1.0,)) for s in ("fuse", "efuse")))}
    )
    assert figure.draw().axes[0].get_yticklabels()[0].get_text() == "a$b$<c"


def test_page_marks_unverified_results() -> None:
    found = page({"x": made(result("t1", "efuse", (1.0,), verified=False))})
    assert '<td class="n wrong">NO</td>' in found


# Markdown


def test_markdown_has_the_value_and_its_ratios() -> None:
    lines = markdown({"read": read()}).splitlines()
    assert lines[0].startswith("**read**. By instructions")
    assert lines[2] == "| workload | daemon | efuse | over ext4 | over efuse-direct |"
    cells = [cell.strip() for cell in lines[4].split("|")]
    assert cells[1:4] == ["t1-single-read", r"passthrough\_backing", "153 400 iops"]
    (ratio,) = (
        r
        for r in read()["ratios"]
        if (r["workload"], r["of"], r["over"]) == ("t1-single-read", "efuse", "ext4")
    )
    spread = f"{ratio['min']:.3g}-{ratio['max']:.3g}"
    assert cells[4] == f"{ratio['median']:.3g} ({spread})"


def _side_by_side(report: dict[str, Any], headers: str) -> tuple[str, list[list[str]]]:
    """Return the line above a table of the Markdown, and the table's rows."""
    lines = markdown({"x": report}).splitlines()
    first = lines.index(headers)
    rows = itertools.takewhile(bool, lines[first + 2 :])
    return lines[first - 2], [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]


def test_markdown_has_the_counts_side_by_side() -> None:
    title, rows = _side_by_side(
        made(
            result("stat", "fuse", (1.0,), daemon_requests=1234, context_switches=5),
            result("stat", "efuse", (1.0,), daemon_requests=6, context_switches=7),
            result("xattr", "efuse", (1.0,), daemon_requests=0, context_switches=0),
        ),
        "| workload | daemon | fuse | efuse |",
    )
    assert title.startswith("Requests to the daemon in a round")
    assert rows == [
        ["stat", "passthrough", "1 234 / 5", "6 / 7"],
        ["xattr", "passthrough", "", "0 / 0"],
    ]


def test_markdown_table_of_counts_has_copied_bytes() -> None:
    def told(system: str, mib: float | None) -> Result:
        copied = {COPIED: Series(mib, "MiB", (mib,), compared=False)} if mib is not None else {}
        counts = {"daemon_requests": 30, "context_switches": 4}
        return result("stat", system, (1.0,), measures=copied, **counts)

    title, rows = _side_by_side(
        made(told("fuse", 12.3456), told("efuse", 0.0), told("fuse-tuned", None)),
        "| workload | daemon | fuse | efuse | fuse-tuned |",
    )
    assert title.endswith(" / MiB that the kernel copied to and from the daemon:")
    assert rows == [["stat", "passthrough", "30 / 4 / 12.35", "30 / 4 / 0", "30 / 4 / -"]]


def test_markdown_has_no_switches_where_none_were_counted() -> None:
    title, rows = _side_by_side(
        made(
            result("stat", "fuse", (1.0,), daemon_requests=1234, context_switches=0),
            result("stat", "efuse", (1.0,), daemon_requests=6, context_switches=0),
        ),
        "| workload | daemon | fuse | efuse |",
    )
    assert title == "Requests to the daemon in a round:"
    assert rows == [["stat", "passthrough", "1 234", "6"]]


def test_markdown_has_no_counts_where_there_are_none() -> None:
    lines = markdown({"x": made(result("stat", "efuse", (1.0,), daemon_requests=0))})
    assert "Requests that" not in lines


def test_markdown_table_of_measures_has_ratios() -> None:
    fuse, efuse = scaled(1, "fuse", 100, 30), scaled(1, "efuse", 300, 10)
    for one in (fuse, efuse):
        one.measures["preempted"] = Series(1.0, "", (1.0,) * 3, compared=False)
    report = made(fuse, efuse)
    title, rows = _side_by_side(report, "| workload | daemon | measure | fuse | efuse |")
    assert title == (
        "Medians of the other measures; after the comma, how many times better efuse is."
    )
    assert rows == [["scale-stat-1", "passthrough", "latency p99, us", "30, 3 (3-3)", "10"]]


def test_markdown_of_storage_has_the_places() -> None:
    report = storage()
    title, rows = _side_by_side(report, "| workload | slow-link | low-latency |")
    assert title.startswith("Microseconds that a run takes at the device / in the kernel")
    assert rows == [
        ["scan-64K-cold", "1 748 / 1 966 / 922 / 1 762", "1 747 / 1 825 / 781 / 1 754"],
        ["lookup-6-warm", "342 / 28 / 14 / 29", "45 / 28 / 14 / 28"],
    ]
    report["results"] = report["results"][:3]
    report["results"][0]["verified"] = False
    _, rows = _side_by_side(report, "| workload | slow-link | low-latency |")
    assert rows == [["scan-64K-cold", "1 748 / 1 966 / 922 / - WRONG", ""]]


def test_markdown_of_storage_says_which_place_is_better() -> None:
    report = storage()
    again = [
        {**r, "workload": r["workload"].replace("64K", "4M"), "value": 100.0}
        for r in report["results"]
        if "slow-link-scan" in r["workload"]
    ]
    for r in report["results"]:
        r["value"] = {"device": 40.0, "kernel": 50.0, "daemon": 20.0, "auto": 44.0}[r["system"]]
    report["results"] += again
    title, rows = _side_by_side(report, "| workload | compared | slow-link | low-latency |")
    assert title.startswith("How many times faster one place is than another")
    assert rows == [
        ["scan-cold", "device over kernel", "1-1.25", "1.25-1.25"],
        ["scan-cold", "kernel over daemon", "0.4-1", "0.4-0.4"],
        ["scan-cold", "auto over the better of device and kernel", "0.909-1", "0.909-0.909"],
        ["lookup-warm", "device over kernel", "1.25-1.25", "1.25-1.25"],
        ["lookup-warm", "kernel over daemon", "0.4-0.4", "0.4-0.4"],
        ["lookup-warm", "auto over the better of device and kernel", "0.909-0.909", "0.909-0.909"],
    ]


def test_markdown_escapes_names() -> None:
    report = made(*(result("a|b<c>", s, (1.0,)) for s in ("fuse", "efuse")))
    assert r"| a\|b\<c\> | passthrough |" in markdown({"x": report})


# The command


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "report", *map(str, words)])
    return int(caught.value.code or 0)


def test_report_writes_html_png_and_markdown_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figures, table = tmp_path / "o.html", tmp_path / "figures", tmp_path / "o.md"
    words = (READ, STORAGE, "--html", out, "--png", figures, "--markdown", table)
    assert run(*words) == 0
    assert sorted(file.name for file in figures.iterdir()) == [
        "bench-read-hits.png",
        "bench-read-paths.png",
        "bench-read-ratios.png",
        "bench-storage-places.png",
    ]
    assert "<h2>bench-read</h2>" in out.read_text() and "**bench-storage**" in table.read_text()
    assert str(figures / "bench-read-hits.png") in capsys.readouterr().out


def test_report_prints_markdown_without_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(READ) == 0
    assert capsys.readouterr().out == markdown({"bench-read": read()})


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"results": [{}]}', '{"results": 1}', '{"results": [], "machine": 3}'],
)
def test_report_of_a_file_that_is_no_report_fails(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text(text)
    assert run(tmp_path / "x.json") == 2
    assert "is not a report of a benchmark" in capsys.readouterr().err


def test_report_of_two_files_of_one_name_fails(tmp_path: Path) -> None:
    (tmp_path / READ.name).write_text(READ.read_text())
    assert run(READ, tmp_path / READ.name) == 2


def test_report_that_cannot_be_written_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(READ, "--markdown", tmp_path / "none" / "o.md") == 1
    assert "cannot be written: No such file or directory (ENOENT)" in capsys.readouterr().err


def test_report_of_an_older_version_gets_the_fields_that_it_lacks() -> None:
    old = json.loads(json.dumps(read()))
    for one in old["results"]:
        for name in ("paths", "channels", "measures", "rounds_counters"):
            del one[name]
    for ratio in old["ratios"]:
        del ratio["measure"]
    whole = of_json(old)
    assert whole["results"][0]["measures"] == {} and whole["ratios"][0]["measure"] == "value"
