# SPDX-License-Identifier: LGPL-2.1-or-later
"""Draw numbers as bars."""

from collections.abc import Sequence

__all__ = ["bar", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last *width* values as a row of bars, scaled to the largest of them.

    Zero is a blank. If there are fewer values, the row begins with blanks.
    """
    shown = values[-width:] if width > 0 else ()
    top = max(shown, default=0)
    bars = (_BARS[min(7, int(8 * v / top))] if v > 0 else " " for v in shown)
    return "".join(bars).rjust(width)


def bar(value: float, top: float, width: int) -> str:
    """Return a bar for *value*, where *top* is *width* long. A value above 0 is never blank."""
    return "█" * max(1, round(width * value / top)) if value > 0 else ""
