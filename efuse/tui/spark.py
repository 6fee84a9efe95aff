# SPDX-License-Identifier: LGPL-2.1-or-later
"""A row of numbers as a row of bars."""

from collections.abc import Sequence

__all__ = ["bar", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last *width* values as bars, the largest of them as the highest bar.

    Zero is a blank; where there are fewer values the beginning is blank.
    """
    shown = values[-width:] if width > 0 else ()
    top = max(shown, default=0)
    bars = (_BARS[min(7, int(8 * v / top))] if v > 0 else " " for v in shown)
    return "".join(bars).rjust(width)


def bar(value: float, top: float, width: int) -> str:
    """Return a bar that is *width* long for *top*; what is not 0 is at least one character."""
    return "█" * max(1, round(width * value / top)) if value > 0 else ""
