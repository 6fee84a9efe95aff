# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse top``: show what the mounts and devices are doing, live."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import click
from rich.console import Console

from efuse import stats, tui
from efuse.cli._output import json_option, pause, print_json
from efuse.closing import Closing
from efuse.control import KeptFiles
from efuse.stats.maps import Occupancy

__all__ = ["cli"]


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds between frames.",
)
@click.option("--once", is_flag=True, help="Print one frame after one interval, and exit.")
@json_option
@click.option("--tab", type=click.Choice(tui.TAB_NAMES), help="Tab to show first.")
@click.option(
    "--sort",
    type=click.Choice(tui.SORTS),
    default="rate",
    show_default=True,
    help="Column by which the opcodes are sorted.",
)
@click.option("--filter", "part", default="", help="Show only opcodes whose name contains this.")
def cli(interval: float, once: bool, as_json: bool, tab: str | None, sort: str, part: str) -> None:
    """Show what the mounts and emulated devices do: rates, hits, paths, channels, latencies.

    Plain FUSE mounts are shown as well, even if the module is not loaded: their requests are
    counted while this command runs. That needs root.

    On a terminal there are tabs for mounts, opcodes, paths, channels and devices. Keys: 1 to 5 and
    Tab change the tab, s sorts, / filters, Enter shows more of a row, space pauses, ? shows help,
    q quits.

    Without a terminal, on a dumb one, and with --once, it prints all tables as one block per
    interval; with --json one line per interval.

    \b
    efuse top --interval 1 --filter read
    """
    order = tui.Order(sort)
    console = Console(highlight=False, markup=False)
    screen = console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty()
    if screen and not (once or as_json):
        # --sort and --filter apply to opcodes.
        first = tab or ("opcodes" if part or sort != "rate" else "mounts")
        view = tui.View(tui.TAB_NAMES.index(first), {"opcodes": order}, part)
        with _Sampler() as sample:
            tui.run(sample, interval_s=interval, console=console, state=tui.State(view))
        return
    with _Sampler() as sample:
        before = sample()
        while True:
            pause(interval)
            after = sample()
            change = stats.change(before, after)
            if as_json:
                print_json(change.json(), indent=2 if once else None)
            else:
                _print(console, change, order, part)
            if once:
                return
            before = after


def _print(console: Console, change: stats.Change, order: tui.Order, part: str) -> None:
    if not change.mounts:
        click.echo("no FUSE file system is mounted")
    if change.mounts or change.devices:
        console.print(tui.plain(change, order=order, part=part, width=console.width))


class _Sampler(Closing):
    """Reads the counters, and how full the maps are if this user may see it."""

    def __init__(self) -> None:
        self._occupancy = Occupancy()
        self._plain = stats.PlainMounts()
        self._files = KeptFiles()

    def close(self) -> None:
        self._plain.close()
        self._files.close()

    def __call__(self, *, timing: bool = True, maps: bool = True) -> stats.Snapshot:
        found = stats.take(timing=timing, plain=self._plain, files=self._files)
        if not maps or os.geteuid() != 0:
            return found
        return replace(
            found, mounts=tuple(replace(s, maps=self._occupancy.of(s)) for s in found.mounts)
        )
