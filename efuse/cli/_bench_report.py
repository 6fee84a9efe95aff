# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse bench report``: tables and figures of benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from efuse.bench.rendering.drawing import write_png
from efuse.bench.rendering.markdown import markdown
from efuse.bench.rendering.page import page
from efuse.bench.rendering.sections import sections
from efuse.bench.stored import load
from efuse.cli._output import echo
from efuse.errors import EfuseError, UsageError, reason

__all__ = ["report"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("files", nargs=-1, required=True, type=_FILE, metavar="FILE.json...")
@click.option("--html", type=_FILE, help="Write a page that needs no other files.")
@click.option(
    "--png",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write each figure into a file in this directory.",
)
@click.option("--markdown", "text", type=_FILE, help="Write tables for a README.")
def report(files: tuple[Path, ...], html: Path | None, png: Path | None, text: Path | None) -> None:
    """Draw the reports that --json wrote. Without options, print the tables as Markdown.

    \b
    efuse bench report report.json --html report.html --png figures
    """
    reports = _named(files)
    try:
        if html is not None:
            html.write_text(page(reports))
        if png is not None:
            _write_figures(reports, png)
        if text is not None:
            text.write_text(markdown(reports))
    except OSError as error:
        raise EfuseError(f"{error.filename} cannot be written: {reason(error)}") from error
    if html is png is text is None:
        click.echo(markdown(reports), nl=False)


def _named(files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Load the reports; return them by the names of their files without suffix."""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        if file.stem in found:
            raise UsageError(
                f"two reports have the name {file.stem}", hint="rename one of the files"
            )
        found[file.stem] = load(file)
    return found


def _write_figures(reports: dict[str, dict[str, Any]], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, one in reports.items():
        for section in sections(one):
            file = directory / f"{name}-{section.name}.png"
            write_png(section.draw, file)
            echo(file)
