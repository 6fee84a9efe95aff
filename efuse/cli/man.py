# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse man``: write the manual pages."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["cli"]


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def cli(directory: Path) -> None:
    """Write the manual pages below DIRECTORY, into man1 and man8.

    There is one page per command. `manpath` tells where man(1) looks for pages.

    \b
    efuse man ~/.local/share/man
    efuse man /usr/local/share/man
    """
    from efuse.cli._manual import pages
    from efuse.cli._output import echo
    from efuse.display import shown

    count = 0
    for name, text in pages():
        section = directory / f"man{name[-1]}"
        section.mkdir(parents=True, exist_ok=True)
        (section / name).write_text(text)
        count += 1
    echo(f"wrote {count} pages to {shown(str(directory))}")
