# SPDX-License-Identifier: LGPL-2.1-or-later
"""Columns that several tables share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from efuse.tables.grid import Column
from efuse.tables.rows import Row
from efuse.tables.spark import sparkline
from efuse.units import count, duration, share

__all__ = [
    "HISTORY",
    "MOUNT",
    "number",
    "of_efuse",
    "of_plain",
    "ratio",
    "steady",
    "time",
    "word",
]

Value = Callable[[Any], float | None]


def of_efuse(row: Row[Any]) -> bool:
    """Return whether a row is about an eFuse mount."""
    return not row.is_plain


def of_plain(row: Row[Any]) -> bool:
    """Return whether a row is about a plain FUSE mount."""
    return row.is_plain


def word(
    title: str,
    value: Callable[[Any], str],
    what: str,
    *,
    sort: str = "name",
    rank: int = 0,
    least: int = 0,
    style: Callable[[Row[Any]], str] = lambda row: "",
) -> Column[Row[Any]]:
    """Return a column of words. Rows are sorted by the words themselves."""
    return Column(
        title,
        what,
        lambda row: value(row.what),
        sort=sort,
        value=lambda row: value(row.what),
        up=True,
        rank=rank,
        least=least,
        left=True,
        style=style,
    )


def number(
    title: str, value: Value, what: str, *, sort: str = "", rank: int = 0, least: int = 5
) -> Column[Row[Any]]:
    """Return a column of rates or counts."""

    def text(row: Row[Any]) -> str:
        found = value(row.what)
        return "-" if found is None else count(found)

    return Column(
        title, what, text, sort=sort, value=lambda row: value(row.what), rank=rank, least=least
    )


def time(title: str, value: Value, what: str, *, sort: str = "", rank: int = 0) -> Column[Row[Any]]:
    """Return a column of times in ns."""
    return Column(
        title,
        what,
        lambda row: duration(value(row.what)),
        sort=sort,
        value=lambda row: value(row.what),
        rank=rank,
        least=6,
    )


def ratio(
    title: str, value: Value, what: str, *, sort: str = "", rank: int = 0, good: bool = False
) -> Column[Row[Any]]:
    """Return a column of shares, 0 to 1.

    :param good: whether larger is better; if so, cells are coloured.
    """
    return Column(
        title,
        what,
        lambda row: share(value(row.what)),
        sort=sort,
        value=lambda row: value(row.what),
        rank=rank,
        least=5,
        style=lambda row: ratio_style(value(row.what)) if good else "",
    )


def ratio_style(found: float | None) -> str:
    """Return the colour for a share: more is better."""
    if found is None:
        return ""
    return "green" if found >= 0.9 else "yellow" if found >= 0.5 else "red"


def _end(words: str, width: int) -> str:
    """Return the end of a path, cut to *width*."""
    return words if len(words) <= width else "…" + words[len(words) - width + 1 :]


MOUNT: Column[Row[Any]] = Column(
    "MOUNT",
    "where it is mounted; a long path is cut at its beginning",
    lambda row: row.mount,
    sort="mount",
    value=lambda row: row.mount,
    up=True,
    least=8,
    left=True,
    style=lambda row: "cyan",
    draw=lambda row, width: _end(row.mount, width),
    shared=True,
)

HISTORY: Column[Row[Any]] = Column(
    "HISTORY",
    "rates of the last intervals; the highest bar is the most",
    lambda row: " " * len(row.history),
    rank=4,
    least=8,
    left=True,
    style=lambda row: "bright_blue",
    draw=lambda row, width: sparkline(row.history, width),
    most=40,
)


def steady(columns: Sequence[Column[Row[Any]]]) -> list[Column[Row[Any]]]:
    """Return the columns for output that is printed once, mount by mount: without history."""
    return [column for column in columns if column not in (HISTORY, MOUNT)]
