# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make the page of all commands from their help texts, like the manual pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from efuse.cli import _commands

__all__ = ["text"]

_HEAD = """\
# Commands

`efuse COMMAND --help` prints the same text, and so does `man efuse-COMMAND` where
[the manual pages](install.md#completion-and-manual-pages) are installed. The exit status is 0 for
success, 1 for a failure, 2 for wrong usage, 3 if this machine, kernel or installation cannot do it,
and 130 after an interrupt. The exit status of `mount.efuse` is 0 for success, 1 for wrong usage,
and 32 for a failure.

"""


def text() -> str:
    """Return the text of the page."""
    from efuse.cli._mount_helper import cli as helper
    from efuse.cli.main import cli

    lines = _HEAD.splitlines()
    for context in _commands.walk(cli, "efuse"):
        lines += _command(context)
    lines += _command(_commands.context_of(helper, "mount.efuse"))
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Return *text* with all characters escaped that Markdown could take for mark-up."""
    return re.sub(r"([\\*_<>\[\]#|~$])", r"\\\1", text)


def _command(context: click.Context) -> Iterator[str]:
    command = context.command
    described = _commands.text(command)
    yield from (f"## `{context.command_path}`", "")
    for paragraph in described.paragraphs:
        yield from (_escaped(paragraph), "")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from ("```none", usage, "```", "")
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    for record in records:
        if record is not None and record[1]:
            yield from (f"`{record[0]}`", f": {_escaped(record[1])}", "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = f"{context.command_path} {name}"
            yield f"* [`{below}`](#{below.replace(' ', '-')})"
        yield ""
    yield from ("```console", *(f"$ {line}" for line in described.examples), "```", "")
