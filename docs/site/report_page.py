# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make the page of reports from the reports in docs/figures, like ``efuse bench report``."""

from __future__ import annotations

from pathlib import Path

from efuse.bench.rendering.drawing import write_png
from efuse.bench.rendering.markdown import markdown
from efuse.bench.rendering.sections import sections
from efuse.bench.stored import load

__all__ = ["write"]

_HEAD = """\
# Reports

All tables and figures that `efuse bench report` makes from the reports in `docs/figures`.
[Figures](benchmarks.md) describes how they were measured, and what they mean. Measure your own with
`efuse bench --json FILE`.
"""


def write(root: Path, directory: Path) -> None:
    """Write the page and its figures into *directory*.

    :param root: the root of the repository.
    """
    text = [_HEAD]
    for path in sorted((root / "docs" / "figures").glob("*.json")):
        report = load(path)
        text.append(f"\n## {path.stem.capitalize()}\n\n{markdown({path.stem: report})}")
        for section in sections(report):
            picture = f"report/{path.stem}-{section.name}.png"
            (directory / picture).parent.mkdir(exist_ok=True)
            write_png(section.draw, directory / picture)
            text.append(f"\n![{section.title}]({picture})\n")
    (directory / "report.md").write_text("".join(text))
