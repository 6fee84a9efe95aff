# SPDX-License-Identifier: LGPL-2.1-or-later
"""The functions over B+ trees on the command line. Values are printed as hexadecimal digits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from efuse.cli._csd_command import Command
from efuse.cli._csd_records import FIELD, aggregated
from efuse.functions.btree import BtreeAggregate, BtreeLookup, BtreeRange
from efuse.functions.btree_file import ITEM
from efuse.functions.records import Field

__all__ = ["AGGREGATE", "LOOKUP", "RANGE"]


def _range() -> tuple[click.Parameter, ...]:
    return (
        click.Option(["--first"], type=int, default=0, metavar="KEY", help="The smallest key."),
        click.Option(
            ["--last"], type=int, default=(1 << 64) - 1, metavar="KEY", help="The largest key."
        ),
    )


def _value(value: bytes | None) -> dict[str, Any]:
    return {"value": None if value is None else value.hex()}


LOOKUP = Command(
    BtreeLookup,
    example="4711 /mnt/index",
    options=(click.Argument(["key"], type=int),),
    fields=_value,
)


def _found(_call: BtreeRange, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Iterate over the lines to print, one per item; a piece may end within an item."""
    rest = b""
    for piece in pieces:
        rest += piece
        whole = len(rest) - len(rest) % ITEM.size
        for key, value in ITEM.iter_unpack(rest[:whole]):
            yield f"{key} {value.hex()}\n".encode()
        rest = rest[whole:]


RANGE = Command(
    BtreeRange,
    example="--first 100 --last 200 /mnt/index",
    options=_range(),
    fields=lambda items: {"items": [{"key": key, "value": value.hex()} for key, value in items]},
    found=_found,
)

AGGREGATE = Command(
    BtreeAggregate,
    example="--first 100 --field 0:4 /mnt/index",
    options=(
        *_range(),
        click.Option(
            ["--field"],
            type=FIELD,
            default=Field(0),
            metavar="OFFSET[:SIZE[u]]",
            help="The number in a value: offset, size in bytes (8), u: unsigned.",
        ),
    ),
    fields=aggregated,
)
