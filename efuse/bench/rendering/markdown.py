# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reports as tables in Markdown, for a README."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from efuse.bench.rendering.grid import Grid, number, times
from efuse.bench.rendering.heading import heading
from efuse.bench.rendering.ratios import ratios_of, subject
from efuse.bench.rendering.sections import is_of_storage, result_grid
from efuse.bench.storage_report import STORAGE_HEADERS, storage_rows

__all__ = ["markdown"]


def markdown(reports: Mapping[str, dict[str, Any]]) -> str:
    """Return what each report was taken with, and its table, under the name of its file."""
    return "\n".join(_report(name, report) for name, report in reports.items())


def _report(name: str, report: dict[str, Any]) -> str:
    told = dict(heading(report))
    words = [
        f"{what} {told[what]}"
        for what in ("kernel", "rounds", "scale", "lower", "machine")
        if what in told
    ]
    clock = f"By {told['clock']}. " if "clock" in told else ""
    return f"**{_text(name)}**. {_text(clock)}{_text('; '.join(words))}.\n\n{_table(_grid(report))}"


def _grid(report: dict[str, Any]) -> Grid:
    if is_of_storage(report):
        return Grid(STORAGE_HEADERS, storage_rows(report), names=1)
    system = subject(report)
    return result_grid(report) if system is None else _compared(report, system)


def _compared(report: dict[str, Any], system: str) -> Grid:
    """Return a row for each workload: the value of *system*, and its ratio over each other."""
    ratios = ratios_of(report, system)
    over = list(dict.fromkeys(ratio["over"] for ratio in ratios))
    found = {(r["workload"], r["daemon"], r["over"]): r for r in ratios}
    rows = []
    for result in report["results"]:
        if result["system"] == system:
            names = (result["workload"], result["daemon"])
            value = f"{number(result['value'])} {result['unit']}"
            wrong = "" if result["verified"] else " WRONG"
            rows.append((*names, value + wrong, *(_times(found.get((*names, o))) for o in over)))
    return Grid(("workload", "daemon", system, *(f"over {o}" for o in over)), rows)


def _times(ratio: dict[str, Any] | None) -> str:
    if ratio is None:
        return ""
    return f"{times(ratio['median'])} ({times(ratio['min'])}-{times(ratio['max'])})"


def _table(grid: Grid) -> str:
    rule = ["---" if column < grid.names else "---:" for column in range(len(grid.headers))]
    rows = [grid.headers, *grid.rows]
    lines = [_line([_text(cell) for cell in row]) for row in rows]
    return "\n".join([lines[0], _line(rule), *lines[1:], ""])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    """Escape what Markdown or HTML would take for more than text."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text.replace("\n", " "))
