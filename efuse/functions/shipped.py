# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shipped functions by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from efuse.functions.btree import BtreeAggregate, BtreeLookup, BtreeRange
from efuse.functions.count import Count
from efuse.functions.crc32c import Crc32c
from efuse.functions.grep import Grep
from efuse.functions.records import Aggregate, Histogram

__all__ = ["SHIPPED", "Shipped"]


class Shipped(Protocol):
    """A call of a shipped function: the function and its arguments."""

    name: ClassVar[str]

    def encode(self) -> bytes:
        """Return the arguments as the function takes them."""

    def reference(self, data: bytes) -> bytes:
        """Return the function's output over *data*, computed by its reference implementation."""

    def decode(self, raw: bytes) -> Any:
        """Convert the function's output to Python values."""


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
"""The classes of the shipped functions, by name of the function."""
