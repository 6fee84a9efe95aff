# SPDX-License-Identifier: LGPL-2.1-or-later
"""The functions that are shipped, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from efuse.functions import btree_command, count, crc32c, grep, records_command
from efuse.functions.command import Command

__all__ = ["COMMANDS", "SHIPPED", "Shipped"]


class Shipped(Protocol):
    """What all of them have: a call of the function with its arguments."""

    name: ClassVar[str]

    def encode(self) -> bytes:
        """Return the arguments as the function takes them."""

    def reference(self, data: bytes) -> bytes:
        """Return what the function emits over *data*: its twin in Python."""

    def decode(self, raw: bytes) -> Any:
        """Return what the function emitted, as Python has it."""


COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        records_command.AGGREGATE,
        btree_command.AGGREGATE,
        btree_command.LOOKUP,
        btree_command.RANGE,
        count.COMMAND,
        crc32c.COMMAND,
        grep.COMMAND,
        records_command.HISTOGRAM,
    )
}
"""How they look on the command line, by name."""

SHIPPED: Mapping[str, type[Shipped]] = {name: each.function for name, each in COMMANDS.items()}
"""By name."""
