# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make names that other users chose (of files, mounts, threads) safe for a terminal and for JSON.

A name can hold any byte but NUL: escape sequences that a terminal would obey, and bytes that are
not valid UTF-8, which Python keeps as lone surrogates. Pure: no system calls.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["json_text", "shown", "shown_lines"]

_NOT_ASCII = re.compile("[^\n -~]")


def shown(name: str) -> str:
    """Return *name* with every character escaped that a terminal would obey or could not show.

    A byte that is not valid UTF-8 becomes ``\\xff``. Any other character becomes its escape
    sequence in Python source.
    """
    return name if name.isprintable() else "".join(map(_shown, name))


def shown_lines(text: str) -> str:
    """Return *text* escaped as by :func:`shown`, except that newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" else _shown(c) for c in text)


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return ascii(character)[1:-1]


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return *value* as JSON that is valid UTF-8 and holds nothing that a terminal would obey.

    A byte 0xNN that is not valid UTF-8 becomes the escape ``\\udcNN``, a lone surrogate:
    ``json.loads()`` and ``os.fsencode()`` give the byte back.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _NOT_ASCII.sub(lambda found: _in_json(found[0]), text)


def _in_json(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]
