# SPDX-License-Identifier: LGPL-2.1-or-later
"""The READMEs of the two kernel modules describe each source file, and no others."""

import re

import pytest

from tests.documents import ROOT

MODULES = ["kernel_patches", "csd"]


def _described(module: str) -> set[str]:
    """Return each file of the tables "by room", relative to ``src``."""
    text = (ROOT / module / "README.md").read_text().partition("by room\n")[2]
    described = set()
    for room, table in re.findall(
        r"^\*\*(?:`(\w+/)`|Top):.*?\n\n(.*?)\n\n", text + "\n\n", re.M | re.S
    ):
        for row in table.splitlines():
            files = re.findall(r"`([\w./]+\.[ch])`", row.split("|")[1])
            described |= {room + name for name in files}
    return described


def _sources(module: str) -> set[str]:
    """Return each source that a table has to describe: not the headers of rooms, not probes."""
    src = ROOT / module / "src"
    return {
        str(path.relative_to(src))
        for path in src.rglob("*.[ch]")
        if path.parent.name != "probes" and path.name != f"{path.parent.name}_i.h"
    }


@pytest.mark.parametrize("module", MODULES)
def test_readme_describes_each_source_file(module: str) -> None:
    assert _described(module) == _sources(module)
