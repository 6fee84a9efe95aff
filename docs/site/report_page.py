# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page of reports: what ``efuse bench report`` makes of measurements that are checked in."""

from __future__ import annotations

from pathlib import Path

from efuse.bench.rendering.drawing import write_png
from efuse.bench.rendering.markdown import markdown
from efuse.bench.rendering.sections import sections
from efuse.bench.stored import load

__all__ = ["write"]

_HEAD = """\
# Reports

What `efuse bench report` renders of the measurements that are checked in, below `tests/data`: parts
of the runs whose tables are in [the figures](benchmarks.md#read-at-the-device), which also say how
they were taken. Take your own with `efuse bench --json FILE`.
"""

_TITLES = {
    "bench-read": "READ at the device",
    "bench-storage": "Storage functions",
}


def write(root: Path, directory: Path) -> None:
    """Write the page and its figures into *directory*."""
    text = [_HEAD]
    for name, title in _TITLES.items():
        report = load(root / "tests/data" / f"{name}.json")
        text.append(f"\n## {title}\n\n{markdown({name: report})}")
        for section in sections(report):
            picture = f"report/{name}-{section.name}.png"
            (directory / picture).parent.mkdir(exist_ok=True)
            write_png(section.draw, directory / picture)
            text.append(f"\n![{section.title}]({picture})\n")
    (directory / "report.md").write_text("".join(text))
