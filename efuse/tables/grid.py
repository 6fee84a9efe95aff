# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lay out tables: choose the columns that fit, their widths, and the order of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from efuse.tables.text import Line, cell_len, clean, cut

__all__ = ["Column", "Order", "cells", "grid", "in_order", "sorts"]

Row = TypeVar("Row")

_MARK = "> "


@dataclass(frozen=True, slots=True)
class Order:
    """Order of the rows: the column's sort name, and whether the column's order is reversed."""

    sort: str
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column of a table.

    :ivar title: title of the column.
    :ivar what: description for the help.
    :ivar text: function that returns the text of a row's cell.
    :ivar sort: name for sorting by this column; empty if rows cannot be sorted by it.
    :ivar value: function that returns the sort key of a row. Rows with None come last.
    :ivar up: whether the smallest value comes first by default.
    :ivar rank: order in which columns are dropped if there is no room: highest first, 0 never.
    :ivar least: minimum width in cells.
    :ivar left: whether cells are aligned to the left.
    :ivar style: function that returns the style of a row's cell.
    :ivar draw: function that returns the text of a cell for a given width. Such a column gets a
        share of the room that is left.
    :ivar most: maximum width of such a column, in cells.
    :ivar shared: drop the column if all rows have the same text in it.
    :ivar applies: function that returns whether the column makes sense for a row. The column is
        dropped if that is so for no row.
    """

    title: str
    what: str
    text: Callable[[Row], str]
    sort: str = ""
    value: Callable[[Row], float | str | None] = lambda row: None
    up: bool = False
    rank: int = 0
    least: int = 0
    left: bool = False
    style: Callable[[Row], str] = lambda row: ""
    draw: Callable[[Row, int], str] | None = None
    most: int = 1 << 30
    shared: bool = False
    applies: Callable[[Row], bool] | None = None


def sorts(columns: Sequence[Column[Row]]) -> tuple[str, ...]:
    """Return the names by which rows can be sorted."""
    return tuple(column.sort for column in columns if column.sort)


def cells(columns: Sequence[Column[Row]], row: Row) -> tuple[str, ...]:
    """Return the text of all cells of a row."""
    return tuple(column.text(row) for column in columns)


def in_order(columns: Sequence[Column[Row]], rows: Sequence[Row], order: Order) -> list[Row]:
    """Return the rows sorted. Equal rows keep their order."""
    column = next(column for column in columns if column.sort == order.sort)
    known = [row for row in rows if column.value(row) is not None]
    unknown = [row for row in rows if column.value(row) is None]
    known.sort(key=column.value, reverse=column.up is order.reverse)  # type: ignore[arg-type]
    return [*unknown, *known] if order.reverse else [*known, *unknown]


def grid(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    width: int,
    *,
    every: Sequence[Row] | None = None,
    order: Order | None = None,
    cursor: int | None = None,
) -> list[Line]:
    """Return a table of *rows* as lines, the titles first.

    :param width: width of the table in cells.
    :param every: rows that determine the widths, if the table shows only some of them.
    :param order: order of the rows; the title of its column is marked.
    :param cursor: index of the marked row; None for no mark.
    """
    room = width if cursor is None else width - len(_MARK)
    kept = [c for c in columns if _is_needed(c, every or rows)]
    widths, gap = _layout(kept, every or rows, room)
    kept = [column for column in kept if column.title in widths]
    titles = [_title(column, order, widths[column.title]) for column in kept]
    lines = [_line(titles, gap, "" if cursor is None else " " * len(_MARK))]
    for number, row in enumerate(rows):
        here = number == cursor
        drawn = [_cell(column, row, widths[column.title], here) for column in kept]
        mark = "" if cursor is None else _MARK if here else " " * len(_MARK)
        lines.append(_line(drawn, gap, mark))
    return lines


def _is_needed(column: Column[Row], rows: Sequence[Row]) -> bool:
    if column.applies is not None and not any(map(column.applies, rows)):
        return False
    return not column.shared or len({column.text(row) for row in rows}) > 1


def _layout(
    columns: Sequence[Column[Row]], rows: Sequence[Row], room: int
) -> tuple[dict[str, int], int]:
    """Return the width of each column that fits, by title, and the width of the gaps."""
    natural, widths = {}, {}
    for column in columns:
        title = column.title
        longest = max((cell_len(column.text(row)) for row in rows), default=0)
        natural[title] = max(len(title), longest)
        if column.draw is None:
            widths[title] = max(natural[title], column.least)
        else:
            widths[title] = min(natural[title], max(len(title), column.least))
    for column in sorted(columns, key=lambda c: -c.rank):
        if column.rank and sum(widths.values()) + len(widths) - 1 > room:
            del widths[column.title]
    gap = 2 if sum(widths.values()) + 2 * (len(widths) - 1) <= room else 1
    left = room - sum(widths.values()) - gap * (len(widths) - 1)
    flexible = [c for c in columns if c.draw is not None and c.title in widths]
    for number, column in enumerate(flexible):
        wanted = min(column.most, natural[column.title]) - widths[column.title]
        more = max(0, min(left // (len(flexible) - number), wanted))
        widths[column.title] += more
        left -= more
    return widths, gap


def _title(column: Column[Row], order: Order | None, width: int) -> tuple[str, str]:
    words = column.title.ljust(width) if column.left else column.title.rjust(width)
    marked = order is not None and column.sort == order.sort and column.sort
    return words, "bold reverse" if marked else "bold"


def _cell(column: Column[Row], row: Row, width: int, here: bool) -> tuple[str, str]:
    words = clean(column.text(row)) if column.draw is None else clean(column.draw(row, width))
    size = cell_len(words)
    if size > width:
        words = cut(words, width)
        size = cell_len(words)
    blanks = " " * (width - size)
    style = column.style(row)
    return (
        words + blanks if column.left else blanks + words,
        f"bold {style}".strip() if here else style,
    )


def _line(drawn: Sequence[tuple[str, str]], gap: int, mark: str) -> Line:
    parts = [(mark, "bold")] if mark else []
    for number, part in enumerate(drawn):
        if number:
            parts.append((" " * gap, ""))
        parts.append(part)
    return tuple(parts)
