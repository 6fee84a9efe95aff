# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tables of ``efuse bench`` in the documents, between comments that name their report.

A table goes from ``<!-- bench: NAME -->`` to ``<!-- /bench -->``; its report is
``docs/figures/NAME.json``. The README has a summary of the reports between ``<!-- claims -->`` and
``<!-- /claims -->``. The table of the zoo is between ``<!-- zoo -->`` and ``<!-- /zoo -->``; its
report is ``tests/data/zoo.json``. ``python -m tests.figures`` writes the tables, and the pictures
next to the reports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from efuse.bench.rendering.drawing import write_png
from efuse.bench.rendering.grid import times
from efuse.bench.rendering.markdown import markdown
from efuse.bench.rendering.ratios import ratios_of
from efuse.bench.rendering.sections import Section, sections
from efuse.bench.stored import load
from tests.zoo.table import table

__all__ = ["DOCUMENTS", "REPORTS", "filled", "named", "picture", "report"]

_ROOT = Path(__file__).parent.parent
REPORTS = _ROOT / "docs" / "figures"
DOCUMENTS = (_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md")))

_TABLE = re.compile(r"(<!-- bench: ([\w-]+) -->\n).*?(<!-- /bench -->)", re.S)
_CLAIMS = re.compile(r"(<!-- claims -->\n).*?(<!-- /claims -->)", re.S)
_ZOO = re.compile(r"(<!-- zoo -->\n).*?(<!-- /zoo -->)", re.S)


class Claim(NamedTuple):
    """A row of the README's summary: report, workload, its description, section of the document."""

    report: str
    workload: str
    words: str
    section: str


CLAIMS = (
    Claim("metadata", "stat", "`stat` of a file, again and again", "names-and-attributes"),
    Claim("metadata", "negative", "names that do not exist", "names-and-attributes"),
    Claim("metadata", "open-close", "open, fstat and close small files", "names-and-attributes"),
    Claim("metadata", "tree-walk", "`find`, `ls`, `tar`, `git status`", "names-and-attributes"),
    Claim(
        "metadata", "tree-walk-cold", "the same, the kernel's caches empty", "names-and-attributes"
    ),
    Claim("metadata", "untar", "`tar x`", "names-and-attributes"),
    Claim("data", "t1-single", "4 KiB at random, 70 % reads", "data"),
    Claim("data", "seq-read", "read a file again, page caches cold", "data"),
    Claim("data", "seq-write", "write a file from end to end", "data"),
    Claim(
        "bindfs",
        "tree-walk",
        "unmodified bindfs: `find`, `ls`, `tar`, `git status`",
        "unmodified-daemons",
    ),
    Claim("sshfs", "t1-single", "unmodified sshfs: 4 KiB at random", "unmodified-daemons"),
    Claim("sshfs", "open-close", "unmodified sshfs: open and close", "unmodified-daemons"),
)
_OVER = {"fuse": "plain FUSE", "fuse-tuned": "tuned FUSE", "ext4": "ext4"}


def report(name: str) -> dict[str, Any]:
    """Load a report that ``efuse bench --json`` wrote."""
    return load(REPORTS / f"{name}.json")


def picture(name: str) -> Section:
    """Return the figure that is stored with a report: its first one."""
    return sections(report(name))[0]


def named(text: str) -> Iterator[str]:
    """Iterate over the names of the reports whose tables are in *text*."""
    return (found[2] for found in _TABLE.finditer(text))


def filled(text: str) -> str:
    """Return *text* with all tables rewritten from their reports."""
    text = _TABLE.sub(lambda found: f"{found[1]}{_table(found[2])}{found[3]}", text)
    text = _CLAIMS.sub(lambda found: f"{found[1]}{_claims()}{found[2]}", text)
    return _ZOO.sub(lambda found: f"{found[1]}{_zoo()}\n{found[2]}", text)


def _zoo() -> str:
    return table(json.loads((_ROOT / "tests/data/zoo.json").read_text())["daemons"])


def _claims() -> str:
    lines = [f"| | {' | '.join(f'over {words}' for words in _OVER.values())} |"]
    lines.append(f"| --- |{' ---: |' * len(_OVER)}")
    for claim in CLAIMS:
        found = {
            r["over"]: r
            for r in ratios_of(report(claim.report), "efuse")
            if r["workload"] == claim.workload
        }
        cells = [times(found[system]["median"]) for system in _OVER]
        words = f"[{claim.words}](docs/benchmarks.md#{claim.section})"
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _table(name: str) -> str:
    return markdown({name: report(name)})


def main() -> None:
    """Write all tables and pictures."""
    for path in DOCUMENTS:
        text = path.read_text()
        if filled(text) != text:
            path.write_text(filled(text))
    for path in sorted(REPORTS.glob("*.json")):
        section = picture(path.stem)
        write_png(section.draw, path.with_name(f"{path.stem}-{section.name}.png"))


if __name__ == "__main__":
    main()
