# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reports as one self-contained HTML page: no network, no scripts, no other files."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from efuse.bench.rendering.drawing import write_svg
from efuse.bench.rendering.grid import Grid
from efuse.bench.rendering.heading import heading
from efuse.bench.rendering.sections import Section, measure_grid, result_grid, sections

__all__ = ["page"]

_LEAST = 0.75
"""The fraction of its width that a figure keeps next to its numbers. In a narrower window the
numbers go below the figure."""

_CSS = """
:root { color-scheme: light dark; --back: #fff; --ink: #16181d; --dim: #5f6672; --line: #d8dbe0; }
@media (prefers-color-scheme: dark) {
  :root { --back: #16181d; --ink: #e4e6ea; --dim: #9aa1ad; --line: #383d47; }
}
body { margin: 2rem auto; max-width: 86rem; padding: 0 1.5rem; background: var(--back);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; margin-top: 3rem; }
h3 { font-size: 1.05rem; margin-top: 2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; }
.pair { display: flex; flex-wrap: wrap; gap: 1.5rem 2.5rem; align-items: flex-start; }
figure { margin: 0; flex: 1 1; } svg { max-width: 100%; height: auto; }
.table { overflow: auto; max-width: 100%; } .pair .table { max-height: 34rem; }
thead { position: sticky; top: 0; background: var(--back); }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .7rem .15rem 0; text-align: left; white-space: nowrap; }
th { border-bottom: 1px solid var(--line); color: var(--dim); font-weight: 600; }
tr.new td { border-top: 1px solid var(--line); }
th.n, td.n { text-align: right; }
td.wrong { color: #d03a3a; font-weight: 700; }
@media print {
  :root { --back: #fff; --ink: #000; --dim: #444; --line: #bbb; }
  body { margin: 0; max-width: none; padding: 0; font-size: 10pt; }
  .pair { display: block; } .pair .table, .table { overflow: visible; max-height: none; }
  thead { display: table-header-group; position: static; }
  figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
"""


def page(reports: Mapping[str, dict[str, Any]]) -> str:
    """Return a page with all reports, each under the name of its file.

    :raises NotSupportedError: matplotlib is not installed.
    """
    parts = "".join(_report(*item, number) for number, item in enumerate(reports.items()))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>eFuse benchmarks</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        f"<h1>eFuse benchmarks</h1>\n{parts}</body>\n</html>\n"
    )


def _report(name: str, report: dict[str, Any], number: int) -> str:
    words = "".join(
        f"<dt>{escape(what)}</dt><dd>{escape(text)}</dd>\n" for what, text in heading(report)
    )
    figures = "".join(_section(section, number) for section in sections(report))
    measures = measure_grid(report)
    more = f"<h3>Measured in addition</h3>\n{_table(measures)}" if measures.rows else ""
    return (
        f"<section>\n<h2>{escape(name)}</h2>\n<dl>\n{words}</dl>\n{figures}"
        f"<h3>All values</h3>\n{_table(result_grid(report))}{more}</section>\n"
    )


def _section(section: Section, number: int) -> str:
    drawn = write_svg(section.draw, f"{section.name}-{number}")
    width = drawn.partition('width="')[2].partition('"')[0]
    # The table has all that the picture shows, so a label is enough for screen readers.
    drawn = drawn.replace("<svg", f'<svg role="img" aria-label="{escape(section.title)}"', 1)
    return (
        f'<h3>{escape(section.title)}</h3>\n<div class="pair">\n'
        f'<figure style="max-width: {width}; flex-basis: calc({_LEAST} * {width})">{drawn}'
        f"</figure>\n{_table(section.grid)}</div>\n"
    )


def _table(grid: Grid) -> str:
    head = "".join(
        f"<th{_number(column, grid)}>{escape(text)}</th>"
        for column, text in enumerate(grid.headers)
    )
    body, last = "", ""
    for row in grid.rows:
        # Draw a line where another workload begins, unless each row is a workload of its own.
        new = ' class="new"' if grid.names > 1 and last not in ("", row[0]) else ""
        cells = "".join(_cell(text, column, grid) for column, text in enumerate(row))
        body += f"<tr{new}>{cells}</tr>\n"
        last = row[0]
    return (
        f'<div class="table"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody>\n</table></div>\n"
    )


def _cell(text: str, column: int, grid: Grid) -> str:
    wrong = grid.headers[column] == "true" and text == "NO"
    kind = ' class="n wrong"' if wrong else _number(column, grid)
    return f"<td{kind}>{escape(text)}</td>"


def _number(column: int, grid: Grid) -> str:
    return ' class="n"' if column >= grid.names else ""
