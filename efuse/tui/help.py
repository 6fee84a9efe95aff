# SPDX-License-Identifier: LGPL-2.1-or-later
"""The help of ``efuse top``: keys, and the columns of the open tab."""

from __future__ import annotations

from efuse.tables.text import Line, line
from efuse.tui.tabs import tab_of
from efuse.tui.view import KEYS, View

__all__ = ["help_lines"]


def help_lines(view: View) -> list[Line]:
    """Return the lines of the help."""
    columns = [(column.title, column.what) for column in tab_of(view).columns]
    keys = max(len(key) for key, _ in KEYS)
    titles = max(len(title) for title, _ in columns)
    return [
        *(line((key.ljust(keys), "bold"), f"  {what}") for key, what in KEYS),
        *(line((title.ljust(titles), "bold"), f"  {what}") for title, what in columns),
    ]
