# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests per second and their latency by number of threads: curves, and their numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from efuse.bench.rendering.drawing import colours, legend, new_figure, plain_ticks
from efuse.bench.rendering.grid import Grid, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_scale", "points", "scale_grid"]

_NAME = re.compile(r"scale-(stat|read)-(\d+)")


class Point(NamedTuple):
    """The result of one system with one number of threads.

    :ivar kind: ``stat`` or ``read``.
    :ivar threads: number of threads.
    :ivar system: name of the system.
    :ivar value: median of the requests per second.
    :ivar rounds: requests per second in each round.
    :ivar p99_us: median of the 99th percentile of the latency, us; None: not in the report.
    :ivar p99_rounds: 99th percentile of the latency in each round, us.
    """

    kind: str
    threads: int
    system: str
    value: float
    rounds: tuple[float, ...]
    p99_us: float | None
    p99_rounds: tuple[float, ...]


def points(report: dict[str, Any]) -> list[Point]:
    """Return the results of the ``scale-...`` workloads of a report, by kind and threads."""
    found = []
    for result in report["results"]:
        name = _NAME.fullmatch(result["workload"])
        if name:
            p99 = result["measures"].get("latency_p99")
            found.append(
                Point(
                    name[1],
                    int(name[2]),
                    result["system"],
                    result["value"],
                    tuple(result["rounds"]),
                    p99["value"] if p99 else None,
                    tuple(p99["rounds"]) if p99 else (),
                )
            )
    return sorted(found, key=lambda point: (point.kind != "stat", point.threads))


def scale_grid(found: list[Point]) -> Grid:
    """Return a table with the numbers of the figure."""
    return Grid(
        ("what", "threads", "system", "req/s", "min", "max", "p99 us"),
        [
            (
                point.kind,
                str(point.threads),
                point.system,
                number(point.value),
                number(min(point.rounds)),
                number(max(point.rounds)),
                "" if point.p99_us is None else number(point.p99_us),
            )
            for point in found
        ],
        names=3,
    )


def draw_scale(found: list[Point]) -> Figure:
    """Draw the curves, with a row of axes for each kind of request.

    :raises NotSupportedError: matplotlib is not installed.
    """
    kinds = list(dict.fromkeys(point.kind for point in found))
    colour = colours(point.system for point in found)
    figure = new_figure(8.4, 0.6 + 2.9 * len(kinds))
    for row, kind in zip(figure.subplots(len(kinds), 2, squeeze=False), kinds, strict=True):
        mine = [point for point in found if point.kind == kind]
        row[0].set_title(f"{kind}: requests a second")
        row[1].set_title(f"{kind}: latency, 99th percentile, us")
        for system in colour:
            of = [point for point in mine if point.system == system]
            timed = [point for point in of if point.p99_us is not None]
            _curve(row[0], system, colour, [(p.threads, p.value, p.rounds) for p in of])
            _curve(row[1], system, colour, [(p.threads, p.p99_us, p.p99_rounds) for p in timed])
        row[0].set_ylim(bottom=0)
        row[1].set_yscale("log")
        times = [us for point in mine for us in point.p99_rounds]
        if times:
            plain_ticks(row[1].yaxis, min(times), max(times))
        threads = sorted({point.threads for point in mine})
        for axis in row:
            axis.set_xscale("log", base=2)
            axis.set_xticks(threads, [str(n) for n in threads])
            axis.set_xlabel("threads")
            axis.grid()
    legend(figure)
    return figure


def _curve(axis: Any, system: str, colour: dict[str, str], values: list[Any]) -> None:
    if not values:
        return
    threads, medians, rounds = zip(*values, strict=True)
    spread = [
        [median - min(each) for median, each in zip(medians, rounds, strict=True)],
        [max(each) - median for median, each in zip(medians, rounds, strict=True)],
    ]
    axis.errorbar(
        threads,
        medians,
        yerr=spread,
        color=colour[system],
        marker="o",
        markersize=4,
        linewidth=1.4,
        elinewidth=0.8,
        capsize=2,
        label=system,
    )
