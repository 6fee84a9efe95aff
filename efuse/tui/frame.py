# SPDX-License-Identifier: LGPL-2.1-or-later
"""A frame: lines that never wrap. Rich prints them without further layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from efuse.tables.text import Line, cell_len, clean, cut

__all__ = ["Frame"]

_ASCII = str.maketrans("▁▂▃▄▅▆▇█…", "_..--=+#~")


@dataclass(frozen=True, slots=True)
class Frame:
    """Lines for Rich, each cut at the width of the terminal."""

    lines: Sequence[Line]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for drawn in self.lines:
            room = options.max_width
            for words, style in drawn:
                shown = clean(words)
                size = cell_len(shown)
                if size > room:
                    shown = cut(shown, room)
                if options.ascii_only:
                    shown = shown.translate(_ASCII)
                yield Segment(shown, Style.parse(style) if style else None)
                room -= size
                if room <= 0:
                    break
            yield Segment.line()
