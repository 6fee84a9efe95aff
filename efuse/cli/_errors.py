# SPDX-License-Identifier: LGPL-2.1-or-later
"""Print the error that ends a command. It may hold names that other users chose."""

from __future__ import annotations

import io

import click

from efuse.display import shown_lines
from efuse.errors import EfuseError

__all__ = ["report"]


def report(error: EfuseError | click.ClickException, program: str) -> None:
    """Print *error* to standard error, with control characters escaped.

    :param program: name of the command, which comes before an error of the package.
    """
    if isinstance(error, EfuseError):
        text = f"{program}: {error}\n" + (f"try: {error.hint}\n" if error.hint else "")
    else:
        with io.StringIO() as message:
            error.show(message)
            text = message.getvalue()
    click.echo(shown_lines(text), err=True, nl=False)
