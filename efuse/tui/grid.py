# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables: which columns have room, how wide each is, and in which order rows stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from efuse.tui.frame import Line, cell_len, clean, cut

__all__ = ["Column", "Order", "cells", "grid", "in_order", "sorts"]

Row = TypeVar("Row")

_MARK = "> "


@dataclass(frozen=True, slots=True)
class Order:
    """By which column rows are sorted, and whether the other way round than it says."""

    sort: str
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column of a table.

    :ivar what: words for the help.
    :ivar sort: what sorting by it is called; empty: it is not sorted by.
    :ivar value: what is sorted by; None in a row: after all others.
    :ivar up: whether the smallest comes first, and not the largest.
    :ivar rank: of columns that have no room those of the highest rank are left out; 0: none is.
    :ivar least: the least width.
    :ivar draw: makes a cell of the width that there is, for a column that takes what is left.
    :ivar most: the most that such a one takes.
    :ivar shared: left out where all rows have the same in it.
    :ivar applies: whether a row can have anything in it; left out where none can.
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
    """Return what rows can be sorted by."""
    return tuple(column.sort for column in columns if column.sort)


def cells(columns: Sequence[Column[Row]], row: Row) -> tuple[str, ...]:
    """Return one row as words."""
    return tuple(column.text(row) for column in columns)


def in_order(columns: Sequence[Column[Row]], rows: Sequence[Row], order: Order) -> list[Row]:
    """Return the rows sorted; those that are equal stay as they were."""
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
    """Return a table of *rows*, its titles first.

    :param every: the rows that decide on the widths, if more than those that are shown.
    :param order: whose column is marked.
    :param cursor: which row is marked.
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
    """Return the widths of the columns that have room, by their titles, and the gap."""
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
