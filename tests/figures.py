# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tables in documents that ``efuse bench`` wrote, each between comments that name its report.

``<!-- bench: NAME -->`` to ``<!-- /bench -->``; the report is ``docs/figures/NAME.json``.
``python -m tests.figures`` makes the tables anew, and the pictures beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from efuse.bench.rendering.drawing import write_png
from efuse.bench.rendering.markdown import markdown
from efuse.bench.rendering.sections import Section, sections
from efuse.bench.stored import load

__all__ = ["DOCUMENTS", "REPORTS", "filled", "named", "picture", "report"]

DOCUMENTS = Path(__file__).parent.parent / "docs"
REPORTS = DOCUMENTS / "figures"

_TABLE = re.compile(r"(<!-- bench: ([\w-]+) -->\n).*?(<!-- /bench -->)", re.S)


def report(name: str) -> dict[str, Any]:
    """Return what ``efuse bench --json`` wrote."""
    return load(REPORTS / f"{name}.json")


def picture(name: str) -> Section:
    """Return the figure that stands beside a report: the first that it has."""
    return sections(report(name))[0]


def named(text: str) -> Iterator[str]:
    """Yield the names of the reports whose tables stand in *text*."""
    return (found[2] for found in _TABLE.finditer(text))


def filled(text: str) -> str:
    """Return *text* with the tables that its reports give."""
    return _TABLE.sub(lambda found: f"{found[1]}{_table(found[2])}{found[3]}", text)


def _table(name: str) -> str:
    return markdown({name: report(name)})


def main() -> None:
    """Write all of them."""
    for path in sorted(DOCUMENTS.glob("*.md")):
        text = path.read_text()
        if any(named(text)):
            path.write_text(filled(text))
    for path in sorted(REPORTS.glob("*.json")):
        section = picture(path.stem)
        write_png(section.draw, path.with_name(f"{path.stem}-{section.name}.png"))


if __name__ == "__main__":
    main()
