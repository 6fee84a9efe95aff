# SPDX-License-Identifier: LGPL-2.1-or-later
"""Manual pages, generated from the help texts of the commands.

click-man makes such pages, too, but without examples, exit statuses and references.
"""

from __future__ import annotations

import datetime
import os
import textwrap
from collections.abc import Iterator

import click

import efuse
from efuse.cli import _commands

__all__ = ["pages"]

# Characters that roff would not print as they are.
_ROFF = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
)

_EXITS = {
    "1": [
        ("0", "the command succeeded"),
        ("1", "the operation failed"),
        ("2", "wrong usage"),
        ("3", "this machine, kernel or installation cannot do it"),
        ("130", "the command was interrupted"),
    ],
    "8": [
        ("0", "the file system is mounted"),
        ("1", "wrong usage"),
        ("32", "the file system could not be mounted"),
    ],
}


def pages() -> Iterator[tuple[str, str]]:
    """Iterate over the pages: name, such as ``efuse-mount.1``, and text."""
    from efuse.cli._mount_helper import cli as helper
    from efuse.cli.main import cli

    for context in _commands.walk(cli, "efuse"):
        yield f"{_page(context)}.1", _text(context, "1")
    yield "mount.efuse.8", _text(_commands.context_of(helper, "mount.efuse"), "8")


def _page(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _roff(prose: str) -> str:
    """Return *prose* as a line of running text that roff does not take for a request."""
    escaped = prose.translate(_ROFF)
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


def _paragraph(prose: str) -> list[str]:
    return [_roff(line) for line in textwrap.wrap(prose, 78, break_on_hyphens=False)]


def _list(entries: list[tuple[str, str]]) -> Iterator[str]:
    for name, prose in entries:
        # A long list of choices may be broken after each.
        bold = _roff(name).replace("|", r"|\:")
        yield from (".TP", rf"\fB{bold}\fR", *(_paragraph(prose) or [r"\&"]))


def _text(context: click.Context, section: str) -> str:
    return "\n".join(_lines(context, section)) + "\n"


def _lines(context: click.Context, section: str) -> Iterator[str]:
    command = context.command
    described = _commands.text(command)
    page = _page(context)
    yield r".\" SPDX-License-Identifier: LGPL-2.1-or-later"
    yield f'.TH "{_roff(page).upper()}" {section} "{_date()}" "efuse {efuse.__version__}" "eFuse"'
    yield from (".SH NAME", rf"{_roff(page)} \- {_roff(described.summary)}")
    pieces = " ".join(command.collect_usage_pieces(context))
    yield from (".SH SYNOPSIS", rf"\fB{_roff(context.command_path)}\fR {_roff(pieces)}")
    yield ".SH DESCRIPTION"
    for number, paragraph in enumerate(described.paragraphs):
        yield from [".PP"][: number and 1] + _paragraph(paragraph)
    yield ".SH OPTIONS"
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    yield from _list([record for record in records if record is not None and record[1]])
    below = list(_below(context))
    if below:
        yield ".SH COMMANDS"
        yield from _list(below)
    yield from (".SH EXAMPLES", ".EX", *map(_roff, described.examples), ".EE")
    yield from (".SH EXIT STATUS", *_list(_EXITS[section]))
    yield from (".SH SEE ALSO", ",\n".join(_see(context)))


def _below(context: click.Context) -> Iterator[tuple[str, str]]:
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield name, f"{_commands.text(command).summary}."


def _see(context: click.Context) -> Iterator[str]:
    """Iterate over the pages of the parent command and the subcommands, and related ones."""
    found = [f"{_page(context.parent)}(1)"] if context.parent is not None else []
    found += [f"{_page(context)}-{name}(1)" for name, _ in _below(context)]
    if context.command_path in ("efuse", "efuse mount"):
        found += ["mount.efuse(8)"]
    if context.command_path == "mount.efuse":
        found += ["efuse-mount(1)", "mount(8)", "fstab(5)"]
    yield from (rf"\fB{_roff(name[:-3])}\fR{name[-3:]}" for name in found)


def _date() -> str:
    """Return the date of the pages: ``$SOURCE_DATE_EPOCH``, or today."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.datetime.now(datetime.UTC)
    made = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC) if epoch else now
    return f"{made:%Y-%m-%d}"
