# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/service.md describes the keys and the states that there are."""

from __future__ import annotations

import re
from pathlib import Path

from efuse.service.parsing import _KEYS, parsed
from efuse.service.seeing import State
from tests.documents import ROOT, blocks

_TEXT = (ROOT / "docs/service.md").read_text()


def _rows(head: str) -> list[str]:
    """Return the first cells of the table whose first heading is *head*."""
    table = _TEXT.partition(f"\n| {head} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)[1:]


def test_documented_descriptions_are_valid() -> None:
    found = [block.text for block in blocks("docs/service.md") if block.language == "toml"]
    assert [parsed(Path("/x.toml"), text).what for text in found] == ["sshfs", "passthrough"]


def test_each_key_and_each_state_is_documented() -> None:
    keys = [key for cell in _rows("key") for key in re.findall(r"`(\w+)`", cell)]
    assert sorted(keys) == sorted(_KEYS)
    assert [cell.strip("`") for cell in _rows("state")] == [*map(str, State)]
