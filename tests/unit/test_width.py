# SPDX-License-Identifier: LGPL-2.1-or-later
"""The prose of Markdown documents has lines of at most 100 columns."""

from __future__ import annotations

import re

import pytest

from tests.repository import ROOT, files

_COLUMNS = 100


def wide_lines(text: str) -> list[tuple[int, int]]:
    """Return the number and the width of each line of prose that is too wide.

    Not prose: fenced blocks with code and transcripts, comments, rows of tables, the tables that
    scripts write, and the target of a link.
    """
    for pattern in (
        r"^ *```.*?^ *```$",
        r"^<!-- (?:bench|claims)\b.*?^<!-- /",
        r"<!--.*?-->",
        r"^ *\|[^\n]*$",
        r"(?<=\])\([^)]*\)",
    ):
        flags = re.DOTALL | re.MULTILINE
        text = re.sub(pattern, lambda match: "\n" * match[0].count("\n"), text, flags=flags)
    lines = enumerate(text.splitlines(), start=1)
    return [(number, len(line)) for number, line in lines if len(line) > _COLUMNS]


@pytest.mark.parametrize("name", [name for name in files() if name.endswith(".md")])
def test_prose_of_a_document_has_no_wide_lines(name: str) -> None:
    assert wide_lines((ROOT / name).read_text()) == []


def test_wide_line_is_found_behind_a_block() -> None:
    assert wide_lines(f"```\na\n```\n{'b' * 100}\n{'c' * 101}\n") == [(5, 101)]


@pytest.mark.parametrize(
    "text",
    [
        f"| {'a' * 101} |",
        f"```console\n# {'a' * 101}\n```",
        f"<!-- bench: x -->\n{'a' * 101}\n<!-- /bench -->",
        f"<!-- {'a' * 101} -->",
        f"[a link]({'a' * 101})",
    ],
)
def test_wide_line_outside_prose_is_allowed(text: str) -> None:
    assert wide_lines(f"{text}\n") == []
