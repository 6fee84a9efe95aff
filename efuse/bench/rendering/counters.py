# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which path answered READs and WRITEs, and what the kernel answered, for each round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from efuse.bench.rendering.drawing import colours, legend, new_figure
from efuse.bench.rendering.grid import Grid, number, share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["counts", "draw_hits", "draw_paths", "hit_grid", "path_grid", "with_paths"]

_ALL = "all"
_WIDE = 3
"""How many workloads fit next to each other."""


class Count(NamedTuple):
    """The kernel's counters of one workload on one system.

    :ivar round: number of the round, from 1; ``all`` in a report that has only sums.
    :ivar requests: number of requests; 0 if the report has only paths.
    :ivar hits: number of requests that the kernel answered.
    :ivar paths: number of READs and WRITEs by the path that answered them.
    """

    workload: str
    system: str
    round: str
    requests: int
    hits: int
    paths: dict[str, int]


def counts(report: dict[str, Any]) -> list[Count]:
    """Return the counters of a report; there are none for plain FUSE."""
    found = []
    for result in report["results"]:
        names = (result["workload"], result["system"])
        each = result["rounds_counters"]
        found += [
            Count(*names, str(number), one["requests"], one["hits"], one["paths"])
            for number, one in enumerate(each, 1)
        ]
        total = report["settings"].get("kernel_counters", {}).get(" ".join(names))
        if not each and (total or result["paths"]):
            requests, hits = (total["requests"], total["hits"]) if total else (0, 0)
            found.append(Count(*names, _ALL, requests, hits, result["paths"]))
    return found


def with_paths(found: list[Count]) -> list[Count]:
    """Return the counters that include READs or WRITEs."""
    return [count for count in found if sum(count.paths.values())]


def path_grid(found: list[Count]) -> Grid:
    """Return a table with the share of each path."""
    paths = list(dict.fromkeys(path for count in found for path in count.paths))
    rows = []
    for count in found:
        every = sum(count.paths.values())
        shares = (share(count.paths.get(path, 0), every) for path in paths)
        rows.append((count.workload, count.system, count.round, number(every), *shares))
    return Grid(("workload", "system", "round", "READs and WRITEs", *paths), rows)


def hit_grid(found: list[Count]) -> Grid:
    """Return a table with the number and the share of the requests that the kernel answered."""
    return Grid(
        ("workload", "system", "round", "requests", "answered by the kernel", "share"),
        [
            (
                *count[:3],
                number(count.requests),
                number(count.hits),
                share(count.hits, count.requests),
            )
            for count in found
        ],
    )


def draw_paths(found: list[Count]) -> Figure:
    """Draw a bar for each round; a row of axes for each workload, a column for each system.

    :raises NotSupportedError: matplotlib is not installed.
    """
    if all(count.round == _ALL for count in found):
        return _draw_sums(found, [count.paths for count in found], "% of READs and WRITEs")
    workloads = list(dict.fromkeys(count.workload for count in found))
    systems = list(dict.fromkeys(count.system for count in found))
    colour = colours(path for count in found for path in count.paths)
    figure = new_figure(1.4 + 1.5 * len(systems), 0.9 + 1.25 * len(workloads))
    axes = figure.subplots(len(workloads), len(systems), squeeze=False, sharey=True)
    for row, workload in zip(axes, workloads, strict=True):
        for axis, system in zip(row, systems, strict=True):
            mine = [count for count in found if count[:2] == (workload, system)]
            axis.set_visible(bool(mine))
            bottoms = [0.0] * len(mine)
            for path in colour:
                heights = [100 * c.paths.get(path, 0) / sum(c.paths.values()) for c in mine]
                axis.bar(
                    [count.round for count in mine],
                    heights,
                    bottom=bottoms,
                    width=0.82,
                    color=colour[path],
                    label=path,
                )
                bottoms = [a + b for a, b in zip(bottoms, heights, strict=True)]
            axis.set_title(f"{workload}\n{system}", fontsize=8)
            axis.set_ylim(0, 100)
            axis.tick_params(labelsize=8)
        row[0].set_ylabel("% of requests", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("round", fontsize=8)
    legend(figure)
    return figure


def draw_hits(found: list[Count]) -> Figure:
    """Draw the share of the requests that the kernel answered, on axes for each workload.

    :raises NotSupportedError: matplotlib is not installed.
    """
    if all(count.round == _ALL for count in found):
        parts = [{"kernel": c.hits, "daemon": c.requests - c.hits} for c in found]
        return _draw_sums(found, parts, "% of requests, by what answered them")
    workloads = list(dict.fromkeys(count.workload for count in found))
    colour = colours(count.system for count in found)
    wide = min(_WIDE, len(workloads))
    rows = -(-len(workloads) // wide)
    figure = new_figure(0.6 + 2.7 * wide, 0.8 + 1.9 * rows)
    axes = figure.subplots(rows, wide, squeeze=False, sharey=True)
    for axis in axes.flat[len(workloads) :]:
        axis.set_visible(False)
    for axis, workload in zip(axes.flat, workloads, strict=False):
        for broader, system in zip(range(len(colour), 0, -1), colour, strict=True):
            mine = [count for count in found if count[:2] == (workload, system)]
            if mine:
                # Draw earlier lines broader, so that they show behind the later ones.
                axis.plot(
                    [count.round for count in mine],
                    [100 * count.hits / count.requests for count in mine],
                    color=colour[system],
                    marker="o",
                    markersize=3 + broader / 2,
                    linewidth=0.6 + 0.6 * broader,
                    label=system,
                )
        axis.set_title(workload)
        axis.set_ylim(-4, 104)
        axis.grid(axis="y")
        axis.set_xlabel("round")
    for row in axes:
        row[0].set_ylabel("% by the kernel")
    legend(figure)
    return figure


def _draw_sums(found: list[Count], parts: list[dict[str, int]], what: str) -> Figure:
    """Draw one bar for each workload on each system, divided into *parts*."""
    colour = colours(name for each in parts for name in each)
    figure = new_figure(7.4, 0.9 + 0.24 * len(found))
    axis = figure.subplots()
    labels = [f"{count.workload}  {count.system}" for count in found]
    lefts = [0.0] * len(found)
    for name in colour:
        widths = [100 * each.get(name, 0) / sum(each.values()) for each in parts]
        axis.barh(labels, widths, left=lefts, height=0.8, color=colour[name], label=name)
        lefts = [a + b for a, b in zip(lefts, widths, strict=True)]
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel(what)
    axis.tick_params(axis="y", length=0)
    legend(figure)
    return figure
