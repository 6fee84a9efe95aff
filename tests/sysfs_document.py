# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parse docs/sysfs.md, for the tests that compare it with the code and with the live tree."""

import re
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).parent.parent / "docs" / "sysfs.md"


@dataclass(frozen=True)
class File:
    """A row of a table of files."""

    name: str
    mode: int
    unit: str
    range: str
    default: str
    what: str


def files(section: str) -> dict[str, File]:
    """Return the files that the section with the heading *section* describes, by name."""
    found = {}
    for name, mode, *rest in _rows(section):
        found[name] = File(name, int(mode, 8), *rest)
    return found


def lines(section: str) -> tuple[str, ...]:
    """Return the names of the lines of a file of counters, in order."""
    return tuple(name for name, *_ in _rows(section))


def mode(section: str) -> int:
    """Return the mode of the files of counters that a section describes."""
    match = re.search(r"^`connections/\S+` \((\d+)\)", _section(section), re.M)
    assert match, f"no mode in the section {section!r}"
    return int(match[1], 8)


def _rows(section: str) -> list[list[str]]:
    rows = re.findall(r"^\| `.*$", _section(section), re.M)
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in rows]


def opcodes() -> tuple[str, ...]:
    """Return the opcodes that the document lists."""
    quoted = re.findall(r"^> (.*)$", _section("Counters"), re.M)
    return tuple(re.findall(r"`(\w+)`", " ".join(quoted)))


def _section(heading: str) -> str:
    text = DOCUMENT.read_text()
    match = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert match, f"no section {heading!r}"
    return match[1]
