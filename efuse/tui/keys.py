# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decode the bytes that a terminal sends for keys."""

import re

__all__ = ["decode"]

_NAMES = {
    **{"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left"},
    **{"\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left"},
    **{"\x1b[5~": "pgup", "\x1b[6~": "pgdn", "\x1b[Z": "backtab"},
    **{"\x1b[H": "home", "\x1b[1~": "home", "\x1bOH": "home"},
    **{"\x1b[F": "end", "\x1b[4~": "end", "\x1bOF": "end"},
    **{"\r": "enter", "\n": "enter", "\t": "tab", "\x1b": "esc"},
    **{"\x7f": "backspace", "\b": "backspace"},
}
_KEY = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)


def decode(data: bytes) -> list[str]:
    """Return the keys in one piece of terminal input: characters, and names of special keys.

    Unknown escape sequences are dropped.
    """
    found = []
    for word in _KEY.findall(data.decode(errors="replace")):
        key = _NAMES.get(word, word)
        if not key.startswith("\x1b"):
            found.append(key)
    return found
