# SPDX-License-Identifier: LGPL-2.1-or-later
"""How many times better eFuse is: a bar chart, and its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efuse.bench.rendering.drawing import INK, colours, legend, new_figure, plain_ticks
from efuse.bench.rendering.grid import Grid, times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_ratios", "ratio_grid", "ratios_of", "subject"]

_BAR = 0.21  # Height of a bar, inches.


def subject(report: dict[str, Any]) -> str | None:
    """Return the system whose ratios are shown: ``efuse`` if it has any, else the first one."""
    of = dict.fromkeys(ratio["of"] for ratio in report["ratios"])
    return "efuse" if "efuse" in of else next(iter(of), None)


def ratios_of(report: dict[str, Any], system: str) -> list[dict[str, Any]]:
    """Return the ratios of the values of *system*, in the report's order."""
    return [r for r in report["ratios"] if (r["of"], r["measure"]) == (system, "value")]


def ratio_grid(ratios: list[dict[str, Any]]) -> Grid:
    """Return a table with the numbers of the figure."""
    return Grid(
        ("workload", "over", "median", "min", "max"),
        [
            (r["workload"], r["over"], *(times(r[name]) for name in ("median", "min", "max")))
            for r in ratios
        ],
    )


def draw_ratios(ratios: list[dict[str, Any]]) -> Figure:
    """Draw the medians as bars from 1, with error bars from the least to the greatest ratio.

    :raises NotSupportedError: matplotlib is not installed.
    """
    workloads = list(dict.fromkeys(r["workload"] for r in ratios))
    over = list(dict.fromkeys(r["over"] for r in ratios))
    colour = colours(over)
    slots = len(over) + 0.8
    figure = new_figure(7.4, 0.9 + _BAR * slots * len(workloads))
    axis = figure.subplots()
    for index, system in enumerate(over):
        mine = [r for r in ratios if r["over"] == system]
        places = [workloads.index(r["workload"]) * slots + index for r in mine]
        medians = [r["median"] for r in mine]
        spread = [
            [r["median"] - r["min"] for r in mine],
            [r["max"] - r["median"] for r in mine],
        ]
        axis.barh(
            places,
            [median - 1 for median in medians],
            left=1,
            height=0.86,
            color=colour[system],
            label=f"over {system}",
        )
        axis.errorbar(
            medians, places, xerr=spread, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2
        )
        for place, r in zip(places, mine, strict=True):
            axis.annotate(
                times(r["median"]),
                (max(1, r["max"]), place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    least = min(1, *(r["min"] for r in ratios)) / 1.15
    most = max(1, *(r["max"] for r in ratios))
    axis.set_xscale("log")
    axis.set_xlim(least, most * (most / least) ** 0.1)
    plain_ticks(axis.xaxis, least, most)
    axis.axvline(1, color=INK, linewidth=0.8)
    axis.set_yticks([n * slots + (len(over) - 1) / 2 for n in range(len(workloads))], workloads)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(len(workloads) * slots - 0.6, -1)
    axis.set_xlabel("ratio: above 1, eFuse is better; the lines show minimum and maximum")
    axis.grid(axis="x")
    legend(figure)
    return figure
