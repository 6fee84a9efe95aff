# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the workloads of storage functions found: a table, and a plot, made from the JSON."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from efuse.errors import NotSupportedError

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["plot", "storage_table"]

_FIXED = ("device", "kernel", "daemon")
_COLOURS = {"device": "C0", "kernel": "C1", "daemon": "C2", "auto": "black"}
_STATES = {"cold": "-", "warm": ":"}
_CELL = re.compile(r"(?P<profile>.+)-(?P<kind>[a-z]+)-(?P<size>\d+)(?P<unit>[KM]?)-(?P<state>\w+)")


class _Cell(NamedTuple):
    """What a workload's name says; *size* in bytes, or levels."""

    profile: str
    kind: str
    size: int
    state: str


def _cell(workload: str) -> _Cell:
    found = _CELL.fullmatch(workload)
    assert found, workload
    size = int(found["size"]) << {"K": 10, "M": 20, "": 0}[found["unit"]]
    return _Cell(found["profile"], found["kind"], size, found["state"])


def storage_table(report: dict[str, Any]) -> Table:
    """Make the table for people from the JSON's values.

    The times are the medians; what AUTO takes of the best fixed place, round by round, is the
    median and the spread; LINK is what came over the link when the device looked.
    """
    from rich.table import Table  # slow to import

    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    made.add_column("WORKLOAD", no_wrap=True)
    for title in ("DEVICE us", "KERNEL us", "DAEMON us", "AUTO us", "AUTO/BEST", "LINK B", "TRUE"):
        made.add_column(title, justify="right")
    for workload, places in _by_workload(report["results"]).items():
        made.add_row(
            workload,
            *(_time(places.get(place)) for place in (*_FIXED, "auto")),
            _of_best(places),
            _link(places.get("device")),
            "yes" if all(result["verified"] for result in places.values()) else "NO",
        )
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


def _of_best(places: dict[str, dict[str, Any]]) -> str:
    """Return how long ``auto`` takes by what the better of device and kernel does."""
    if not {"auto", "device", "kernel"} <= set(places):
        return ""
    best = min(("device", "kernel"), key=lambda place: float(places[place]["value"]))
    each = sorted(
        mine / other
        for mine, other in zip(places["auto"]["rounds"], places[best]["rounds"], strict=True)
    )
    return f"{places['auto']['value'] / places[best]['value']:.2f} ({each[0]:.2f}-{each[-1]:.2f})"


def plot(report: dict[str, Any], path: Path) -> None:
    """Draw how long each place takes, by size or depth, for each function and model of a device.

    :raises NotSupportedError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotSupportedError(
            "cannot draw: matplotlib is not installed", hint="pip install 'efuse[plot]'"
        ) from error
    cells = [(_cell(result["workload"]), result) for result in report["results"]]
    kinds = list(dict.fromkeys(cell.kind for cell, _ in cells))
    profiles = list(dict.fromkeys(cell.profile for cell, _ in cells))
    figure = Figure(figsize=(3.4 * len(profiles), 2.7 * len(kinds)), layout="constrained")
    axes = figure.subplots(len(kinds), len(profiles), squeeze=False, sharey="row")
    for row, kind in zip(axes, kinds, strict=True):
        for axis, profile in zip(row, profiles, strict=True):
            mine = [
                found for found in cells if (found[0].kind, found[0].profile) == (kind, profile)
            ]
            _draw(axis, kind == "lookup", mine)
            axis.set_title(f"{kind}: {profile}", fontsize=10)
        row[0].set_ylabel("us a run")
    lines = {
        label: line
        for axis in axes.flat
        for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=90)


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
    if lookup:
        axis.set_xlabel("levels of the tree")
    else:
        axis.set_xscale("log", base=2)
        axis.set_xlabel("bytes of the file")
    axis.grid(alpha=0.3)
