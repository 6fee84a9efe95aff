# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse top``: what the mounts and devices are doing, live."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import click
from rich.console import Console

from efuse import stats, tui
from efuse.cli._output import json_option, pause, print_json
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
@click.option("--once", is_flag=True, help="Print one frame, after one interval, and end.")
@json_option
@click.option(
    "--sort",
    type=click.Choice(tui.SORTS),
    default="rate",
    show_default=True,
    help="What the opcodes are sorted by.",
)
@click.option("--filter", "part", default="", help="Show only opcodes whose name contains this.")
def cli(interval: float, once: bool, as_json: bool, sort: str, part: str) -> None:
    """Show per mount and opcode: rate, hits, why requests passed, latencies, map occupancy.

    Below the mount stand the paths of READs and WRITEs, and the channels that requests reach the
    daemon through, with their NUMA nodes; below all, the emulated devices that have power.

    Keys: s sort, r reverse, / filter, c channels, n next mount, space pause, h help, q quit. Where
    there is no terminal (or a dumb one), and with --json, frame follows frame; JSON is one line for
    each.

    \b
    efuse top --interval 1 --filter read
    """
    view = tui.View(sort=sort, filter=part)
    console = Console(highlight=False, markup=False)
    screen = console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty()
    if screen and not (once or as_json):
        tui.run(_Sampler(), interval_s=interval, console=console, view=view)
        return
    sample = _Sampler()
    before = sample()
    while True:
        pause(interval)
        after = sample()
        model = stats.change(before, after)
        if as_json:
            print_json(model.json(), indent=2 if once else None)
        else:
            _print(console, model, view, interval)
        if once:
            return
        before = after


def _print(console: Console, model: stats.Change, view: tui.View, interval: float) -> None:
    if not model.mounts:
        click.echo("no eFuse file system is mounted")
    if model.mounts or model.devices:
        frame = tui.render(
            model.mounts, view, interval_s=interval, width=console.width, devices=model.devices
        )
        console.print(frame)


class _Sampler:
    """Reads the counters, and the maps' occupancy where this user may see it."""

    def __init__(self) -> None:
        self._occupancy = Occupancy()

    def __call__(self) -> stats.Snapshot:
        found = stats.take()
        if os.geteuid() != 0:
            return found
        return replace(
            found, mounts=tuple(replace(s, maps=self._occupancy.of(s)) for s in found.mounts)
        )
