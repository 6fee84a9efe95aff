# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of text, before they are HTML or Markdown, and how numbers are written in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Grid", "number", "share", "times"]


class Grid(NamedTuple):
    """A table. The first *names* columns are names, the others numbers."""

    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    names: int = 2


def number(value: float) -> str:
    """Return four digits of a number, thousands apart from each other: ``44 790``, ``0.7141``."""
    short = float(f"{value:.4g}")
    if abs(short) >= 1000:
        return f"{short:,.0f}".replace(",", " ")
    return f"{short:.4g}"


def times(value: float) -> str:
    """Return three digits of a ratio."""
    return f"{value:.3g}" if abs(value) < 1000 else number(value)


def share(part: float, whole: float) -> str:
    """Return how many percent *part* is; nothing if there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else ""
