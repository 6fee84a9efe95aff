# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reports as Markdown tables, for a README."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from efuse.bench.rendering.grid import Grid, number, times
from efuse.bench.rendering.heading import heading
from efuse.bench.rendering.ratios import ratios_of, subject
from efuse.bench.rendering.sections import is_of_storage, result_grid
from efuse.bench.report import COPIED
from efuse.bench.storage_report import storage_gains, storage_rows

__all__ = ["markdown"]

_PLACES = "Microseconds that a run takes at the device / in the kernel / by the daemon / by auto:"
_GAINS = "How many times faster one place is than another, least and greatest over all sizes:"
_REQUESTS = "Requests to the daemon in a round"
_SWITCHES = "voluntary context switches of the daemon"
_COPIED = "MiB that the kernel copied to and from the daemon"
_MEASURED = "Medians of the other measures; after the comma, how many times better"


def markdown(reports: Mapping[str, dict[str, Any]]) -> str:
    """Return the heading and the tables of each report, under the name of its file."""
    return "\n".join(_report(name, report) for name, report in reports.items())


def _report(name: str, report: dict[str, Any]) -> str:
    told = dict(heading(report))
    words = [
        f"{what} {told[what]}"
        for what in ("kernel", "rounds", "scale", "lower", "machine")
        if what in told
    ]
    clock = f"By {told['clock']}. " if "clock" in told else ""
    blocks = [f"**{_text(name)}**. {_text(clock)}{_text('; '.join(words))}."]
    for title, grid in _grids(report):
        blocks += [title, _table(grid)] if title else [_table(grid)]
    return "\n\n".join(blocks) + "\n"


def _grids(report: dict[str, Any]) -> Iterator[tuple[str, Grid]]:
    """Yield the tables that are not empty, each with the line above it."""
    if is_of_storage(report):
        yield _PLACES, _by_profile(report)
        yield _GAINS, _gains(report)
        return
    system = subject(report)
    if system is None:
        yield "", result_grid(report)
        return
    yield "", _compared(report, system)
    if any(result["daemon_requests"] for result in report["results"]):
        yield _counts(report)
    if any(ratio["measure"] != "value" for ratio in report["ratios"]):
        yield f"{_MEASURED} {system} is.", _measured(report, system)


def _by_profile(report: dict[str, Any]) -> Grid:
    """Return a row for each function, size and state, with a cell for each device profile."""
    profiles = tuple(report["settings"]["profiles"])
    rows: dict[str, dict[str, str]] = {}
    for workload, *places, _auto, _link, true in storage_rows(report):
        profile = next(name for name in profiles if workload.startswith(f"{name}-"))
        text = " / ".join(number(float(place)) if place else "-" for place in places)
        text += " WRONG" * (true != "yes")
        rows.setdefault(workload.removeprefix(f"{profile}-"), {})[profile] = text
    cells = [(name, *(row.get(p, "") for p in profiles)) for name, row in rows.items()]
    return Grid(("workload", *profiles), cells, names=1)


def _gains(report: dict[str, Any]) -> Grid:
    """Return a row for each function, state and comparison, with a cell for each profile."""
    profiles = tuple(report["settings"]["profiles"])
    rows = [
        (*names, *(_range(ratios[name]) if name in ratios else "" for name in profiles))
        for names, ratios in storage_gains(report).items()
    ]
    return Grid(("workload", "compared", *profiles), rows)


def _range(ratios: list[float]) -> str:
    return f"{times(min(ratios))}-{times(max(ratios))}"


def _compared(report: dict[str, Any], system: str) -> Grid:
    """Return a row for each workload: the value of *system*, and its ratio over each other one."""
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


def _side_by_side(report: dict[str, Any], cell: Callable[[dict[str, Any]], str]) -> Grid:
    """Return a row for each workload, with a cell for each system."""
    systems = list(dict.fromkeys(result["system"] for result in report["results"]))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for result in report["results"]:
        names = (result["workload"], result["daemon"])
        rows.setdefault(names, {})[result["system"]] = cell(result)
    return Grid(
        ("workload", "daemon", *systems),
        [(*names, *(cells.get(system, "") for system in systems)) for names, cells in rows.items()],
    )


def _counts(report: dict[str, Any]) -> tuple[str, Grid]:
    """Return a table of what the daemons did, as far as the report has it, and its title."""
    titles, counts = [_REQUESTS], [_requests]
    if any(result["context_switches"] for result in report["results"]):
        titles.append(_SWITCHES)
        counts.append(_switches)
    if any(_is_counted(result) for result in report["results"]):
        titles.append(_COPIED)
        counts.append(_copied)
    grid = _side_by_side(report, lambda result: " / ".join(count(result) for count in counts))
    return f"{' / '.join(titles)}:", grid


def _requests(result: dict[str, Any]) -> str:
    return number(result["daemon_requests"])


def _switches(result: dict[str, Any]) -> str:
    return number(result["context_switches"])


def _is_counted(result: dict[str, Any]) -> bool:
    """Return whether the result has copied bytes per round; those per request are compared."""
    return COPIED in result["measures"] and not result["measures"][COPIED]["compared"]


def _copied(result: dict[str, Any]) -> str:
    return number(result["measures"][COPIED]["value"]) if _is_counted(result) else "-"


def _measured(report: dict[str, Any], system: str) -> Grid:
    """Return a row for each measure: each system's median, and how *system* compares with it."""
    systems = list(dict.fromkeys(result["system"] for result in report["results"]))
    ratios = {
        (r["workload"], r["daemon"], r["measure"], r["over"]): r
        for r in report["ratios"]
        if r["of"] == system
    }
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for result in report["results"]:
        names = (result["workload"], result["daemon"])
        compared = {n: s for n, s in result["measures"].items() if s.get("compared", True)}
        for measure, series in compared.items():
            better = _times(ratios.get((*names, measure, result["system"])))
            text = f"{number(series['value'])}{f', {better}' if better else ''}"
            title = ", ".join(filter(None, (measure.replace("_", " "), series["unit"])))
            rows.setdefault((*names, title), {})[result["system"]] = text
    return Grid(
        ("workload", "daemon", "measure", *systems),
        [(*names, *(cells.get(one, "") for one in systems)) for names, cells in rows.items()],
        names=3,
    )


def _times(ratio: dict[str, Any] | None) -> str:
    if ratio is None:
        return ""
    return f"{times(ratio['median'])} ({times(ratio['min'])}-{times(ratio['max'])})"


def _table(grid: Grid) -> str:
    rule = ["---" if column < grid.names else "---:" for column in range(len(grid.headers))]
    rows = [grid.headers, *grid.rows]
    lines = [_line([_text(cell) for cell in row]) for row in rows]
    return "\n".join([lines[0], _line(rule), *lines[1:]])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    """Escape characters that are special in Markdown or HTML."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text.replace("\n", " "))
