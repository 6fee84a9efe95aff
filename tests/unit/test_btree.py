# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that hold a B+ tree, and the reference implementations of the functions over them."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable

import pytest

from efuse import locations
from efuse.errors import EfuseError, UsageError
from efuse.functions import BtreeAggregate, BtreeLookup, BtreeRange, Field
from efuse.functions.btree_file import BLOCK, CHILD, HEADER, ITEM, MOST, NODE, build


def made(count: int) -> dict[int, bytes]:
    """Return *count* items with odd keys."""
    source = random.Random(count)
    return {2 * number + 1: source.randbytes(64) for number in range(count)}


def lookup(data: bytes, key: int) -> bytes | None:
    call = BtreeLookup(key)
    return call.decode(call.reference(data))


@pytest.mark.parametrize("fanout", [2, 3, 255])
@pytest.mark.parametrize("count", [0, 1, 56, 57, 168, 1000])
def test_tree_lookups_and_ranges_equal_those_of_a_dict(count: int, fanout: int) -> None:
    items = made(count)
    data = build(items.items(), fanout=fanout)
    for key in (0, 1, 2, 111, 112, 113, 2 * count - 1, 2 * count, (1 << 64) - 1):
        if key >= 0:
            assert lookup(data, key) == items.get(key)
    for first, last in ((0, 1 << 63), (1, 1), (2, 2), (100, 200), (113, 115), (5000, 6000)):
        wanted = [(key, value) for key, value in items.items() if first <= key <= last]
        ranged = BtreeRange(first, last)
        assert ranged.decode(ranged.reference(data)) == wanted
        summed = BtreeAggregate(first, last, Field(8, 2))
        found = summed.decode(summed.reference(data))
        numbers = [struct.unpack_from("<h", value, 8)[0] for _, value in wanted]
        assert (found.count, found.sum) == (len(numbers), sum(numbers))
        assert found.least == min(numbers, default=None)
        assert found.most == max(numbers, default=None)


def test_a_walk_reads_a_block_of_each_level() -> None:
    data = build(made(56 * 9).items(), fanout=3)
    read = []

    def block(number: int) -> bytes:
        read.append(number)
        return data[number * BLOCK : (number + 1) * BLOCK]

    BtreeLookup(5).walk(block)
    assert read == [0, 13, 10, 1]


def test_format_equals_that_of_the_header() -> None:
    header = (locations.data("csd") / "functions/include/btree.bpf.h").read_text()
    sizes = {"u64": 8, "u32": 4, "u16": 2, "u8": 64}
    for name, entry in (("header", HEADER), ("node", NODE), ("item", ITEM), ("child", CHILD)):
        found = re.search(rf"struct btree_{name} \{{(.*?)\}};", header, re.DOTALL)
        assert found
        kinds = re.findall(r"^\t(u\d+) ", found[1], re.MULTILINE)
        assert sum(sizes[kind] for kind in kinds) == entry.size
    assert (MOST[ITEM], MOST[CHILD]) == (56, 255)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BtreeLookup(-1),
        lambda: BtreeLookup(1 << 64),
        lambda: BtreeRange(2, 1),
        lambda: BtreeAggregate(2, 1),
        lambda: BtreeAggregate(field=Field(64)),
        lambda: build([(1, bytes(64)), (1, bytes(64))]),
        lambda: build([(1 << 64, bytes(64))]),
        lambda: build([(1, bytes(63))]),
        lambda: build([], fanout=1),
        lambda: build([], fanout=256),
    ],
)
def test_invalid_arguments_of_a_tree_fail(make: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        make()


def test_lookup_in_a_malformed_tree_fails() -> None:
    for data in (b"", b"e_btree1", bytes(BLOCK), build([])[:-1]):
        with pytest.raises(EfuseError, match="EUCLEAN"):
            lookup(data, 1)
