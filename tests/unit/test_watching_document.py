# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/watching.md names every column of ``efuse top``, and the field of ``--json`` for each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from efuse.tui import TAB_NAMES, View
from efuse.tui.tabs import tab_of
from tests.pictures import PICTURES
from tests.unit.watched import model

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "watching.md"
TEXT = DOCUMENT.read_text()
FOUND = json.loads(json.dumps(model().change.json()))


def columns(name: str) -> dict[str, str]:
    """Return the field for each column that the section about a tab lists."""
    section = TEXT.split(f"\n## {name.capitalize()}\n")[1].split("\n## ")[0]
    found = {}
    for titles, fields in re.findall(r"^\| (`[A-Z].*?) \| (.*?) \|", section, re.MULTILINE):
        names = re.findall(r"`(.*?)`", titles)
        found |= dict(zip(names, re.findall(r"`(.*?)`", fields), strict=True))
    return found


@pytest.mark.parametrize("tab", range(len(TAB_NAMES)))
def test_document_has_the_columns_of_a_tab(tab: int) -> None:
    name = TAB_NAMES[tab]
    titles = {column.title for column in tab_of(View(tab)).columns}
    if name != "mounts":
        titles.discard("MOUNT")
    assert columns(name).keys() == titles


@pytest.mark.parametrize("name", TAB_NAMES)
def test_every_column_is_a_field_of_json(name: str) -> None:
    for field in columns(name).values():
        value: Any = FOUND["devices" if name == "devices" else "mounts"][0]
        for word in field.split("."):
            value = value[word.removesuffix("[]")]
            value = value[0] if word.endswith("[]") else value


def test_document_has_every_picture() -> None:
    shown = re.findall(r"!\[.*\]\(pictures/(.*)\)", TEXT)
    assert set(shown) == {path.name for path in PICTURES.glob("top-*")}
