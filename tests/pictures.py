# SPDX-License-Identifier: LGPL-2.1-or-later
"""The appearance of ``efuse top``: pictures for the documents, and text for the tests.

``python -m tests.pictures`` writes both.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from efuse.tui import TAB_NAMES, View, render
from tests.unit.watched import CONNECTION, PLAIN, model

__all__ = ["PICTURES", "TEXTS", "pictures", "texts"]

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
TEXTS = Path(__file__).parent / "data" / "top"

_WIDTH, _HEIGHT = 110, 18
_SECONDS = 60
_TEXT_SIZES = ((80, 24), (120, 40), (60, 20))

# rich's own format, without the fonts that it loads from the network.
_SVG = """\
<!-- SPDX-License-Identifier: LGPL-2.1-or-later -->
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: DejaVu Sans Mono, Menlo, Consolas, monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
        font-variant-east-asian: full-width;
    }}
    .{unique_id}-title {{
        font-size: 18px;
        font-weight: bold;
        font-family: sans-serif;
    }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})"
      clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""


class _Apart:
    """Lines whose leading spaces are segments of their own: some viewers collapse such spaces."""

    def __init__(self, frame: RenderableType) -> None:
        self._frame = frame

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._frame, options):
            words = segment.text.lstrip(" ")
            yield Segment(segment.text[: len(segment.text) - len(words)], segment.style)
            yield Segment(words, segment.style)


def _views() -> Iterator[tuple[str, View]]:
    for number, name in enumerate(TAB_NAMES):
        yield name, View(number)
    opcodes = TAB_NAMES.index("opcodes")
    yield "opcode", View(opcodes, detail=(CONNECTION, "lookup"))
    yield "plain-opcodes", View(opcodes, mount=PLAIN)
    yield "plain-opcode", View(opcodes, detail=(PLAIN, "read"))


def pictures() -> dict[str, str]:
    """Return the pictures by file name."""
    known = model(_SECONDS)
    found = {}
    for name, view in _views():
        console = Console(
            file=io.StringIO(),
            width=_WIDTH,
            height=_HEIGHT,
            record=True,
            force_terminal=True,
            color_system="truecolor",
            legacy_windows=False,
            _environ={},
        )
        frame = render(known, view, interval_s=1, width=_WIDTH, height=_HEIGHT)
        console.print(_Apart(frame))
        found[f"top-{name}.svg"] = console.export_svg(
            title="efuse top", code_format=_SVG, unique_id=f"top-{name}"
        )
    return found


def texts() -> dict[str, str]:
    """Return frames without styles, in several sizes, by file name."""
    known = model(_SECONDS)
    found = {}
    for name, view in (*_views(), ("help", View(TAB_NAMES.index("channels"), help=True))):
        for width, height in _TEXT_SIZES:
            console = Console(file=io.StringIO(), width=width, height=height, _environ={})
            with console.capture() as captured:
                console.print(render(known, view, interval_s=1, width=width, height=height))
            lines = [line.rstrip() for line in captured.get().splitlines()]
            found[f"{name}-{width}x{height}.txt"] = "\n".join(lines) + "\n"
    return found


def main() -> None:
    """Write all pictures and texts."""
    for directory, found in ((PICTURES, pictures()), (TEXTS, texts())):
        directory.mkdir(exist_ok=True)
        for name, text in found.items():
            (directory / name).write_text(text)


if __name__ == "__main__":
    main()
