# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands of the shipped functions: ``efuse csd run NAME``."""

from __future__ import annotations

from collections.abc import Mapping

import click

from efuse.cli import _csd_btree, _csd_records
from efuse.cli._csd_command import BYTES, Command
from efuse.functions import Count, Crc32c, Grep

__all__ = ["COMMANDS"]

COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        _csd_records.AGGREGATE,
        _csd_btree.AGGREGATE,
        _csd_btree.LOOKUP,
        _csd_btree.RANGE,
        Command(
            Count,
            example="--pattern error /var/log/syslog",
            options=(
                click.Option(
                    ["--pattern"], type=BYTES, default="", metavar="TEXT", help="Look for TEXT."
                ),
            ),
        ),
        Command(
            Crc32c,
            example="/usr/bin/python3",
            lines=lambda crc: [f"{crc:08x}"],
            fields=lambda crc: {"crc32c": crc},
        ),
        Command(
            Grep,
            example="--pattern error /var/log/syslog",
            options=(
                click.Option(
                    ["--pattern"], type=BYTES, required=True, metavar="TEXT", help="Look for TEXT."
                ),
            ),
            fields=lambda lines: {"lines": [line.decode(errors="replace") for line in lines]},
            found=lambda call, pieces: pieces,
        ),
        _csd_records.HISTOGRAM,
    )
}
"""The commands, by name of the function."""
