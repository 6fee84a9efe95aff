# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test functions that walk a B+ tree: they give the answers of a dict, and always end."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from efuse import functions
from efuse.errors import EfuseError
from efuse.functions import BtreeAggregate, BtreeLookup, BtreeRange, Place
from efuse.functions.btree_file import BLOCK, CHILD, HEADER, ITEM, NODE, build
from tests.guest.support.functions import agree, btree_items, result

LEAVES, LAST = 358, 361
"""The number of leaves, which begin at block 1, and the block of the root."""


def test_btree_functions_agree_over_a_tree_of_three_levels(files: Path) -> None:
    data = build(btree_items().items())
    assert len(data) == (LAST + 1) * BLOCK
    with functions.load("btree_lookup"):
        for key in (0, 1, 167, 168, 30_000, 30_001, 59_997, 59_998, 1 << 63):
            call = BtreeLookup(key)
            device, _ = agree(call, files / "f", data, key)
            found, _ = result(call, files / "f", Place.DEVICE)
            assert call.decode(found) == btree_items().get(key)
            # These are the header, the root, a node and a leaf.
            assert device.device_steps == 4
    with functions.load("btree_range"):
        ranged = BtreeRange(0, 40_000)
        agree(ranged, files / "f", data)
        found, status = result(ranged, files / "f", Place.DEVICE)
        wanted = [(key, value) for key, value in btree_items().items() if key <= 40_000]
        assert ranged.decode(found) == wanted
        # There are 13 334 items, with 56 in each leaf.
        assert status.device_steps == 3 + 239
    with functions.load("btree_aggregate"):
        summed = BtreeAggregate(1000, 50_000)
        agree(summed, files / "f", data)
        found, _ = result(summed, files / "f", Place.DEVICE)
        numbers = [
            struct.unpack_from("<q", value)[0]
            for key, value in btree_items().items()
            if 1000 <= key <= 50_000
        ]
        assert summed.decode(found).count == len(numbers)
        assert (summed.decode(found).sum - sum(numbers)) % (1 << 64) == 0
        assert summed.decode(found).most == max(numbers)


def _at(block: int, offset: int) -> int:
    return block * BLOCK + offset


# The root has two children, and block 359 is the first one. Block 1 is the leaf of key 0.
_CHILD, _LEVEL, _COUNT, _NEXT = NODE.size + 8, 4, 6, 8
DAMAGES = {
    "no magic": (0, b"x"),
    "no root": (_at(0, 16), struct.pack("<Q", 0)),
    "the root lies outside": (_at(0, 16), struct.pack("<Q", LAST + 1)),
    "more blocks than there can be": (_at(0, 8), struct.pack("<Q", 1 << 52)),
    "another level": (_at(0, 24), struct.pack("<I", 3)),
    "the root is no node": (_at(LAST, 0), b"x"),
    "the level does not decrease": (_at(LAST, _CHILD), struct.pack("<Q", LAST)),
    "the level decreases by two": (_at(LAST, _CHILD), struct.pack("<Q", 1)),
    "the child is the header": (_at(LAST, _CHILD), struct.pack("<Q", 0)),
    "the child lies outside": (_at(359, _CHILD), struct.pack("<Q", LAST + 1)),
    "the child's place wraps": (_at(359, _CHILD), struct.pack("<Q", (1 << 52) + 1)),
    "a node without entries": (_at(359, _COUNT), struct.pack("<H", 0)),
    "a node with too many": (_at(359, _COUNT), struct.pack("<H", 256)),
    "a leaf is no node": (_at(1, 0), b"x"),
    "a leaf without entries": (_at(1, _COUNT), struct.pack("<H", 0)),
    "a leaf with too many": (_at(1, _COUNT), struct.pack("<H", 57)),
}
"""Patches that make every function fail: offset and bytes."""

LEAF_DAMAGES = {
    "the next leaf is the same": (_at(5, _NEXT), struct.pack("<Q", 5)),
    "the next leaf is one before": (_at(5, _NEXT), struct.pack("<Q", 2)),
    "the next leaf is a node": (_at(5, _NEXT), struct.pack("<Q", 359)),
    "the next leaf lies outside": (_at(5, _NEXT), struct.pack("<Q", LAST + 1)),
    "a key twice": (_at(5, NODE.size + ITEM.size), struct.pack("<Q", 3 * 56 * 4)),
    "the last key is too great": (_at(5, NODE.size + 55 * ITEM.size), struct.pack("<Q", 59_000)),
}
"""Patches that only matter to functions that go along the leaves: offset and bytes."""


@pytest.mark.parametrize("what", [*DAMAGES, *LEAF_DAMAGES])
def test_damaged_tree_fails(what: str, files: Path) -> None:
    offset, patch = (DAMAGES | LEAF_DAMAGES)[what]
    data = bytearray(build(btree_items().items()))
    assert data[offset : offset + len(patch)] != patch
    data[offset : offset + len(patch)] = patch
    calls = [BtreeRange(), BtreeAggregate()]
    for call in [*calls, BtreeLookup(0)] if what in DAMAGES else calls:
        with functions.load(call.name):
            agree(call, files / "f", bytes(data))
            with pytest.raises(EfuseError, match="EUCLEAN"):
                result(call, files / "f", Place.DEVICE)


def test_truncated_tree_fails(files: Path) -> None:
    data = build(btree_items().items())
    for size, output in ((0, "EUCLEAN"), (BLOCK, "ERANGE"), (len(data) - 1, "EUCLEAN")):
        with functions.load("btree_lookup"):
            agree(BtreeLookup(0), files / "f", data[:size])
            with pytest.raises(EfuseError, match=output):
                result(BtreeLookup(0), files / "f", Place.DEVICE)


def test_tree_with_truncated_leaves_fails(files: Path) -> None:
    """The root is the first block, so following the leaves leads to the end of the file."""
    leaves = [(key, bytes(64)) for key in range(100)]
    data = bytearray(build(leaves))  # The blocks are the header, two leaves and the root.
    root = data[3 * BLOCK :]
    data[BLOCK:] = root + data[BLOCK : 3 * BLOCK]
    data[: HEADER.size] = HEADER.pack(data[:8], 4, 1, 1, 0)
    for number in range(2):
        start = BLOCK + NODE.size + number * CHILD.size
        data[start + 8 : start + 16] = struct.pack("<Q", 2 + number)
    data[2 * BLOCK + 8 : 2 * BLOCK + 16] = struct.pack("<Q", 3)
    with functions.load("btree_range"):
        agree(BtreeRange(), files / "f", bytes(data))
        found, _ = result(BtreeRange(), files / "f", Place.DEVICE)
        assert BtreeRange().decode(found) == leaves
        agree(BtreeRange(), files / "f", bytes(data[: 3 * BLOCK]))
        with pytest.raises(EfuseError, match="EUCLEAN"):
            result(BtreeRange(), files / "f", Place.DEVICE)
