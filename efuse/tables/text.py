# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines of text with styles, and their widths in cells of a terminal."""

from __future__ import annotations

from rich import cells

__all__ = ["Line", "cell_len", "clean", "cut", "line", "text_of", "width_of"]

Line = tuple[tuple[str, str], ...]
"""A line: pieces of text, each with its style."""


def line(*parts: str | tuple[str, str]) -> Line:
    """Return a line made of text, or of pairs of text and style."""
    return tuple((part, "") if isinstance(part, str) else part for part in parts)


def cell_len(words: str) -> int:
    """Return the width of a text in terminal cells."""
    return len(words) if words.isascii() else cells.cell_len(words)


def clean(words: str) -> str:
    """Return a text without characters that a terminal would obey."""
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() else "?" for c in words)


def cut(words: str, width: int) -> str:
    """Return a text cut to *width* cells, with an ellipsis if it was longer."""
    if cell_len(words) <= width:
        return words
    return cells.set_cell_size(words, width - 1).rstrip() + "…" if width > 0 else ""


def text_of(drawn: Line) -> str:
    """Return the text of a line, without styles."""
    return "".join(words for words, _ in drawn)


def width_of(drawn: Line) -> int:
    """Return the width of a line in terminal cells."""
    return cell_len(text_of(drawn))
