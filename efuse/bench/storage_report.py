# SPDX-License-Identifier: LGPL-2.1-or-later
"""The results of the workloads of storage functions: a table and a plot from the JSON."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from efuse.bench.rendering.drawing import INK, legend, new_figure, plain_ticks, write_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

__all__ = [
    "STORAGE_HEADERS",
    "draw_storage",
    "plot",
    "storage_gains",
    "storage_rows",
    "storage_table",
]

STORAGE_HEADERS = (
    *("workload", "device us", "kernel us", "daemon us", "auto us"),
    *("auto over best", "link B", "true"),
)
"""The headers of :func:`storage_rows`."""

_FIXED = ("device", "kernel", "daemon")
_COLOURS = {"device": "#2f7fd1", "kernel": "#d9822b", "daemon": "#4c9f50", "auto": INK}
_STATES = {"cold": "-", "warm": ":"}
_GAINS = {
    "device over kernel": ("device", ("kernel",)),
    "kernel over daemon": ("kernel", ("daemon",)),
    "auto over the better of device and kernel": ("auto", ("device", "kernel")),
}
_CELL = re.compile(r"(?P<profile>.+)-(?P<kind>[a-z]+)-(?P<size>\d+)(?P<unit>[KM]?)-(?P<state>\w+)")


class _Cell(NamedTuple):
    """The parts of a workload's name; *size* is in bytes, or the levels of a tree."""

    profile: str
    kind: str
    size: int
    state: str


def _cell(workload: str) -> _Cell:
    found = _CELL.fullmatch(workload)
    assert found, workload
    size = int(found["size"]) << {"K": 10, "M": 20, "": 0}[found["unit"]]
    return _Cell(found["profile"], found["kind"], size, found["state"])


def _size(bytes_: int) -> str:
    return f"{bytes_ >> 20}M" if bytes_ >= 1 << 20 else f"{bytes_ >> 10}K"


def storage_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of the table for people, made from the JSON's values.

    Times are medians. ``auto over best`` is how many times better AUTO is than the better of device
    and kernel, by the medians, followed by the range over the rounds. ``link B`` is the bytes read
    over the link when the device looked.
    """
    return [
        (
            workload,
            *(_time(places.get(place)) for place in (*_FIXED, "auto")),
            _over_best(places),
            _link(places.get("device")),
            "yes" if all(result["verified"] for result in places.values()) else "NO",
        )
        for workload, places in _by_workload(report["results"]).items()
    ]


def storage_table(report: dict[str, Any]) -> Table:
    """Make the table for people from the JSON's values."""
    from rich.table import Table  # slow to import

    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for number, title in enumerate(STORAGE_HEADERS):
        words = [word.upper() if word not in ("us", "B") else word for word in title.split()]
        made.add_column(" ".join(words), justify="right" if number else "left", no_wrap=not number)
    for row in storage_rows(report):
        made.add_row(*row)
    return made


def _by_workload(results: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for result in results:
        found[result["workload"]][result["system"]] = result
    return found


def _time(result: dict[str, Any] | None) -> str:
    return f"{result['value']:.0f}" if result else ""


def _link(result: dict[str, Any] | None) -> str:
    return f"{result['measures']['link_bytes']['value']:.0f}" if result else ""


def storage_gains(report: dict[str, Any]) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Return how many times better one place is than another, by the medians.

    :return: the ratios of all sizes or depths, in the report's order: first by function and
        state, and what is compared with what, then by device profile.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for workload, places in _by_workload(report["results"]).items():
        cell = _cell(workload)
        for what, (one, others) in _GAINS.items():
            if {one, *others} <= set(places):
                best = min(float(places[other]["value"]) for other in others)
                gain = best / float(places[one]["value"])
                found[f"{cell.kind}-{cell.state}", what][cell.profile].append(gain)
    return found


def _over_best(places: dict[str, dict[str, Any]]) -> str:
    """Return how many times better ``auto`` is than the better of device and kernel."""
    if not {"auto", "device", "kernel"} <= set(places):
        return ""
    best = min(("device", "kernel"), key=lambda place: float(places[place]["value"]))
    each = sorted(
        other / mine
        for mine, other in zip(places["auto"]["rounds"], places[best]["rounds"], strict=True)
    )
    return f"{places[best]['value'] / places['auto']['value']:.2f} ({each[0]:.2f}-{each[-1]:.2f})"


def plot(report: dict[str, Any], path: Path) -> None:
    """Draw a report into a PNG file.

    :raises NotSupportedError: matplotlib is not installed.
    """
    write_png(lambda: draw_storage(report), path)


def draw_storage(report: dict[str, Any]) -> Figure:
    """Draw the time at each place, by size or depth, for each function and device profile.

    :raises NotSupportedError: matplotlib is not installed.
    """
    cells = [(_cell(result["workload"]), result) for result in report["results"]]
    kinds = list(dict.fromkeys(cell.kind for cell, _ in cells))
    profiles = list(dict.fromkeys(cell.profile for cell, _ in cells))
    figure = new_figure(0.4 + 3 * len(profiles), 0.6 + 2.5 * len(kinds))
    axes = figure.subplots(len(kinds), len(profiles), squeeze=False, sharey="row")
    for row, kind in zip(axes, kinds, strict=True):
        for axis, profile in zip(row, profiles, strict=True):
            mine = [
                found for found in cells if (found[0].kind, found[0].profile) == (kind, profile)
            ]
            _draw(axis, kind == "lookup", mine)
            axis.set_title(f"{kind}: {profile}")
        row[0].set_ylabel("us a run")
    legend(figure)
    return figure


def _draw(axis: Any, lookup: bool, cells: list[tuple[_Cell, dict[str, Any]]]) -> None:
    for state, style in _STATES.items():
        for place, colour in _COLOURS.items():
            points = sorted(
                (cell.size, result["value"])
                for cell, result in cells
                if (cell.state, result["system"]) == (state, place)
            )
            if points:
                axis.plot(
                    *zip(*points, strict=True),
                    style,
                    color=colour,
                    marker="." if place != "auto" else "x",
                    markersize=5,
                    linewidth=1,
                    label=f"{place}, {state}",
                )
    axis.set_yscale("log")
    times = [result["value"] for _, result in cells]
    if times:
        plain_ticks(axis.yaxis, min(times), max(times))
    if lookup:
        axis.set_xlabel("levels of the tree")
    else:
        axis.set_xscale("log", base=2)
        found = sorted({cell.size for cell, _ in cells})
        axis.set_xticks(found, [_size(size) for size in found])
        axis.set_xlabel("size of the file")
    axis.grid(alpha=0.3)
