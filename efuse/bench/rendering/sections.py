# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parts of a rendered report: its results, and figures with their numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from efuse.bench.rendering import counters, ratios, scale
from efuse.bench.rendering.grid import Grid, number, times
from efuse.bench.storage_report import STORAGE_HEADERS, draw_storage, storage_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Section", "is_of_storage", "measure_grid", "result_grid", "sections"]


class Section(NamedTuple):
    """A figure and its numbers; `name` becomes the end of the file's name."""

    name: str
    title: str
    grid: Grid
    draw: Callable[[], Figure]


def is_of_storage(report: dict[str, Any]) -> bool:
    """Return whether the report is of storage functions, whose systems are places."""
    return "profiles" in report["settings"]


def sections(report: dict[str, Any]) -> list[Section]:
    """Return the figures for which the report has data."""
    if is_of_storage(report):
        grid = Grid(STORAGE_HEADERS, storage_rows(report), names=1)
        title = "Time of each place, by size or number of levels"
        return [Section("places", title, grid, partial(draw_storage, report))]
    found = []
    system = ratios.subject(report)
    if system is not None:
        mine = ratios.ratios_of(report, system)
        draw = partial(ratios.draw_ratios, mine)
        title = f"How many times better {system} is"
        found.append(Section("ratios", title, ratios.ratio_grid(mine), draw))
    if points := scale.points(report):
        title = "Requests by the number of threads"
        draw = partial(scale.draw_scale, points)
        found.append(Section("scale", title, scale.scale_grid(points), draw))
    counted = counters.counts(report)
    if some := counters.with_paths(counted):
        title = "Which path answered READs and WRITEs"
        draw = partial(counters.draw_paths, some)
        found.append(Section("paths", title, counters.path_grid(some), draw))
    if some := [count for count in counted if count.requests]:
        title = "Requests that the kernel answered"
        draw = partial(counters.draw_hits, some)
        found.append(Section("hits", title, counters.hit_grid(some), draw))
    return found


def result_grid(report: dict[str, Any]) -> Grid:
    """Return a table with the values of all systems."""
    return Grid(
        (
            *("workload", "system", "daemon", "value", "min", "max", "unit"),
            *("requests", "switches", "true"),
        ),
        [
            (
                result["workload"],
                result["system"],
                result["daemon"],
                number(result["value"]),
                number(min(result["rounds"])),
                number(max(result["rounds"])),
                result["unit"],
                number(result["daemon_requests"]),
                number(result["context_switches"]),
                "yes" if result["verified"] else "NO",
            )
            for result in report["results"]
        ],
        names=3,
    )


def measure_grid(report: dict[str, Any]) -> Grid:
    """Return a table of the further measures, and how many times better ``efuse`` is at each."""
    rows = []
    for result in report["results"]:
        for name, series in result["measures"].items():
            better = ""
            for ratio in report["ratios"]:
                same = all(ratio[key] == result[key] for key in ("workload", "daemon"))
                pair = (ratio["of"], ratio["over"], ratio["measure"])
                if same and pair == ("efuse", result["system"], name):
                    spread = f"{times(ratio['min'])}-{times(ratio['max'])}"
                    better = f"{times(ratio['median'])} ({spread})"
            rows.append(
                (
                    result["workload"],
                    result["system"],
                    name.replace("_", " "),
                    number(series["value"]),
                    series["unit"],
                    better,
                )
            )
    headers = ("workload", "system", "measure", "median", "unit", "efuse is better")
    return Grid(headers, rows, names=3)
