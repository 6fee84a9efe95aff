# SPDX-License-Identifier: LGPL-2.1-or-later
"""Walk through the commands of a command line, and take their help texts apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import click

__all__ = ["context_of", "text", "walk"]


def walk(command: click.Command, name: str) -> Iterator[click.Context]:
    """Iterate over the contexts of *command* and of all commands below it, groups first.

    :param name: name of *command* on the command line.
    """
    yield from _walk(context_of(command, name))


def _walk(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            below = context.command.get_command(context, name)
            assert below is not None
            yield from _walk(context_of(below, name, context))


def context_of(
    command: click.Command, name: str, parent: click.Context | None = None
) -> click.Context:
    """Return the context of *command* when it is called by *name*."""
    return click.Context(command, parent, name, **command.context_settings)


class Text(NamedTuple):
    """A help text, taken apart.

    :ivar summary: the first sentence, without its full stop.
    :ivar paragraphs: all paragraphs except the examples, each as one line.
    :ivar examples: command lines to type.
    """

    summary: str
    paragraphs: list[str]
    examples: list[str]


def text(command: click.Command) -> Text:
    """Take the help of *command* apart. The paragraphs that begin with ``\\b`` are examples."""
    paragraphs, examples = [], []
    for paragraph in (command.help or "").strip().split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        if lines and lines[0] == "\b":
            examples += lines[1:]
        else:
            paragraphs.append(" ".join(lines))
    return Text(paragraphs[0].partition(". ")[0].removesuffix("."), paragraphs, examples)
