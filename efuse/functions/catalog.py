# SPDX-License-Identifier: LGPL-2.1-or-later
"""The functions that are shipped, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from efuse.functions import btree_command, count, crc32c, grep, records_command
from efuse.functions.btree import BtreeAggregate, BtreeLookup, BtreeRange
from efuse.functions.command import Command
from efuse.functions.count import Count
from efuse.functions.crc32c import Crc32c
from efuse.functions.grep import Grep
from efuse.functions.records import Aggregate, Histogram

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


SHIPPED: Mapping[str, type[Shipped]] = {
    shipped.name: shipped
    for shipped in (
        Aggregate,
        BtreeAggregate,
        BtreeLookup,
        BtreeRange,
        Count,
        Crc32c,
        Grep,
        Histogram,
    )
}
"""By name."""

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
