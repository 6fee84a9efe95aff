# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names with escape sequences and bytes that are no UTF-8, and what a command may print of them."""

from __future__ import annotations

__all__ = ["NASTY", "is_safe"]

NASTY = (
    b"e\x1b[31mred",
    b"b\xffd",
    b"[red]x[",
    b"two\nlines",
    "\u202egnp\x9b31m".encode(),
    b"r\r\x07\x08\x7f",
    "\u2028\x85\x1cline".encode(),
)
"""Names of files."""


def is_safe(text: str) -> bool:
    """Return whether *text* is UTF-8, without control characters except newlines and tabs."""
    text.encode()
    return all(c.isprintable() or c in "\n\t" for c in text)
