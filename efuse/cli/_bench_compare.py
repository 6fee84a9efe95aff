# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse bench compare``: find out whether something became slower."""

from __future__ import annotations

from pathlib import Path

import click

from efuse.bench.compare import Comparison, compared
from efuse.bench.rendering.grid import number, times
from efuse.bench.stored import load
from efuse.cli._output import echo, json_option, print_json, print_table

__all__ = ["compare"]

_FILE = click.Path(dir_okay=False, path_type=Path)


class _Share(click.ParamType[float]):
    """A percentage; the value is a fraction of 1."""

    name = "percent"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            percent = float(value.removesuffix("%"))
        except ValueError:
            percent = -1
        if not 0 <= percent < 100:
            self.fail(f"{value!r} is not a percentage: write 5% or 0.5%", param, ctx)
        return percent / 100


@click.command()
@click.argument("first", type=_FILE, metavar="A.json")
@click.argument("second", type=_FILE, metavar="B.json")
@click.option(
    "--within",
    type=_Share(),
    default="5%",
    show_default=True,
    help="Tolerance: how much worse a median may be.",
)
@json_option
@click.pass_context
def compare(
    context: click.Context, first: Path, second: Path, within: float, as_json: bool
) -> None:
    """Compare two reports: what is better or worse in B than in A. A ratio above 1 is better.

    The spread goes from the ratio of the worst round to that of the best. A difference is noise if
    the rounds of A and B overlap. The exit status is 1 if something is worse by more than --within
    and beyond the noise, or if a result in B is wrong.

    \b
    efuse bench compare before.json after.json --within 3%
    """
    found = compared(load(first), load(second))
    if as_json:
        print_json(found.json(within))
    else:
        _print(found, within)
    if any(change.failed(within) for change in found.changes):
        context.exit(1)


def _print(found: Comparison, within: float) -> None:
    for warning in found.warnings:
        echo(f"warning: {warning}", err=True)
    rows = [
        (
            change.workload,
            change.system,
            change.measure,
            f"{number(change.first)} {change.unit}",
            f"{number(change.second)} {change.unit}",
            f"{times(change.ratio)} x",
            f"({times(change.min)}-{times(change.max)})",
            change.verdict.upper() if change.failed(within) else change.verdict,
        )
        for change in found.changes
    ]
    headers = ("WORKLOAD", "SYSTEM", "MEASURE", "A", "B", "BETTER", "SPREAD", "VERDICT")
    print_table(headers, rows, right="lllrrrl")
