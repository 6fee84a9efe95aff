# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines and tables that never wrap, and which rows of them have room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

__all__ = ["busiest", "line", "number_table"]

Row = TypeVar("Row")


def line(*parts: str | tuple[str, str]) -> Text:
    """Return words, each perhaps with its style, as one line."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def number_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    styles: Mapping[str, str],
    *,
    left: Collection[str],
) -> Table:
    """Return a table of numbers as wide as the terminal.

    :param styles: of columns, by their headers.
    :param left: columns of words.
    """
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for title in headers:
        table.add_column(
            title,
            justify="left" if title in left else "right",
            style=styles.get(title, ""),
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        table.add_row(*row)
    return table


def busiest(rows: Sequence[Row], number: int, busy: Callable[[Row], Any]) -> list[Row]:
    """Return *number* of *rows*, in their order: those of which *busy* says most."""
    chosen = sorted(range(len(rows)), key=lambda i: busy(rows[i]), reverse=True)[:number]
    return [rows[i] for i in sorted(chosen)]
