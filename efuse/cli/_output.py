# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shared parts of the commands that read: JSON, tables, mount arguments and their completion."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from efuse.control import Connection, mounts
from efuse.display import json_text, shown, shown_lines
from efuse.errors import EfuseError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "ANY_MOUNT",
    "MOUNT",
    "connection",
    "console",
    "echo",
    "json_option",
    "pause",
    "print_json",
    "print_table",
]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print *value* as JSON; on one line if *indent* is None."""
    click.echo(json_text(value, indent=indent))


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print *text* with control characters escaped: it may hold names that other users chose."""
    click.echo(shown_lines(str(text)), err=err, nl=nl)


def console() -> Console:
    """Return a console for tables: as wide as the terminal, or at least 200 columns in a pipe."""
    from rich.console import Console  # slow to import

    made = Console(highlight=False, markup=False)
    if not made.is_terminal:
        made.width = max(made.width, 200)
    return made


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "", gap: int = 2
) -> None:
    """Print a table without borders.

    :param right: one character per column: ``r`` aligns it right, anything else left.
    :param gap: number of spaces between columns.
    """
    from rich.table import Table

    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
    table.show_header = any(headers)
    for i, header in enumerate(headers):
        table.add_column(header, justify="right" if right[i : i + 1] == "r" else "left")
    for row in rows:
        table.add_row(*map(shown, row))
    console().print(table)


def pause(seconds: float) -> None:
    """Sleep; Ctrl-C interrupts it."""
    threading.Event().wait(seconds)


class _Mount(click.ParamType[str]):
    """A path on an eFuse mount, or the number of a connection.

    :param fuse: whether mounts of plain FUSE are completed as well.
    """

    name = "mount"

    def __init__(self, *, fuse: bool = False) -> None:
        self._fuse = fuse

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            found = mounts(fuse=self._fuse)
        except EfuseError:
            return []
        if incomplete.isdecimal():
            names = [(str(m.connection), m.mountpoint) for m in found]
        else:
            names = [(m.mountpoint, f"connection {m.connection}") for m in found]
        return [
            CompletionItem(name, help=shown(h)) for name, h in names if name.startswith(incomplete)
        ]


MOUNT = _Mount()
ANY_MOUNT = _Mount(fuse=True)


def connection(where: str) -> Connection:
    """Return the connection with this number, or that of the mount at this path."""
    if where.isdecimal():
        return Connection(int(where))
    return Connection.at(where)
