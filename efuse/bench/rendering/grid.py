# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of text, which become HTML or Markdown, and the format of numbers in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Grid", "number", "share", "times"]


class Grid(NamedTuple):
    """A table. The first `names` columns hold names, the others numbers."""

    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    names: int = 2


def number(value: float) -> str:
    """Format a number with four digits and a space between thousands: ``44 790``, ``0.7141``."""
    short = float(f"{value:.4g}")
    if abs(short) >= 1000:
        return f"{short:,.0f}".replace(",", " ")
    return f"{short:.4g}"


def times(value: float) -> str:
    """Format a ratio with three digits."""
    return f"{value:.3g}" if abs(value) < 1000 else number(value)


def share(part: float, whole: float) -> str:
    """Format *part* as a percentage of *whole*; empty if *whole* is 0."""
    return f"{100 * part / whole:.1f} %" if whole else ""
