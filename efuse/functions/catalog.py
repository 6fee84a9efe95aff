# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shipped functions by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from efuse.functions import btree_command, count, crc32c, grep, records_command
from efuse.functions.command import Command

__all__ = ["COMMANDS", "SHIPPED", "Shipped"]


class Shipped(Protocol):
    """A call of a shipped function: the function and its arguments."""

    name: ClassVar[str]

    def encode(self) -> bytes:
        """Return the arguments as the function takes them."""

    def reference(self, data: bytes) -> bytes:
        """Return the function's output over *data*, computed by its reference implementation."""

    def decode(self, raw: bytes) -> Any:
        """Convert the function's output to Python values."""


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
"""The commands of the shipped functions, by name of the function."""

SHIPPED: Mapping[str, type[Shipped]] = {name: each.function for name, each in COMMANDS.items()}
"""The classes of the shipped functions, by name of the function."""
