# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that device, kernel and Python emit the same bytes for random calls of shipped functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from efuse import functions
from efuse.functions import (
    SHIPPED,
    Aggregate,
    BtreeAggregate,
    BtreeLookup,
    BtreeRange,
    Count,
    Crc32c,
    Field,
    Filter,
    Grep,
    Histogram,
    Records,
    Shipped,
)
from efuse.functions.btree_file import build
from tests.guest.support.functions import BLOCK, agree

ROUNDS = 60
_MOST_BLOCKS = 24

Case = tuple[Shipped, bytes]
"""A call, and the bytes of a file for it."""


def _size(random: Random) -> int:
    """Return the size of a file, often near the end of a block."""
    whole = random.randrange(_MOST_BLOCKS) * BLOCK
    return max(0, whole + random.choice((0, 0, -1, 1, random.randrange(BLOCK))))


def _text(random: Random) -> bytes:
    """Return bytes of few kinds, in lines that may be short, long, or only one."""
    letters = bytes(random.sample(range(256), random.randint(1, 4)))
    data = bytearray(random.choices(letters, k=_size(random)))
    for _ in range(len(data) // random.choice((2, 80, 3 * BLOCK, 1 << 20))):
        data[random.randrange(len(data))] = ord("\n")
    return bytes(data)


def _pattern(random: Random, data: bytes) -> bytes:
    """Return a part of a line, sometimes with one byte changed."""
    start = random.randrange(len(data) + 1)
    pattern = bytearray(data[start : start + random.randint(1, 64)].partition(b"\n")[0] or b"x")
    if random.random() < 0.3:
        pattern[random.randrange(len(pattern))] = random.choice(b"\0x\xff")
    return bytes(pattern)


def _field(random: Random, record: int) -> Field:
    size = random.choice([size for size in (1, 2, 4, 8) if size <= record])
    return Field(random.randrange(0, record, size), size, signed=size == 8 or random.random() < 0.5)


def _number(random: Random, field: Field) -> int:
    bits = 8 * field.size
    low = -(1 << bits - 1) if field.signed else 0
    return random.randrange(low, low + (1 << bits))


def _records(random: Random) -> Records:
    size = 1 << random.randint(3, 12)
    if random.random() < 0.3:
        return Records(size)
    field = _field(random, size)
    least, most = sorted(_number(random, field) for _ in range(2))
    return Records(size, Filter(field, least, most))


def _aggregate(random: Random) -> Case:
    records = _records(random)
    return Aggregate(records, _field(random, records.size)), random.randbytes(_size(random))


def _histogram(random: Random) -> Case:
    records = _records(random)
    field = _field(random, records.size)
    width = 1 << random.randrange(8 * field.size)
    call = Histogram(records, field, _number(random, field), width, random.randint(1, 1022))
    return call, random.randbytes(_size(random))


def _count(random: Random) -> Case:
    data = _text(random)
    return Count(_pattern(random, data)), data


def _grep(random: Random) -> Case:
    data = _text(random)
    return Grep(_pattern(random, data)), data


def _crc32c(random: Random) -> Case:
    return Crc32c(), random.randbytes(_size(random))


def _tree(random: Random) -> tuple[list[int], bytes]:
    """Return some keys, and a B+ tree of them, which is often damaged."""
    spread = random.choice((1, 10, 1 << 48))
    keys = sorted(random.sample(range(4096 * spread), random.choice((0, 1, 57, 500, 3000))))
    data = bytearray(
        build(((key, random.randbytes(64)) for key in keys), fanout=random.randint(2, 9))
    )
    if random.random() < 0.2:
        del data[random.randrange(len(data)) :]
    for _ in range(random.choice((0, 0, 1, 30))):
        # Damage the head of a block or its first entries, which hold counts, pointers and keys.
        at = random.randrange(0, max(1, len(data)), BLOCK) + random.randrange(48)
        data[at : at + 1] = random.randbytes(1)
    return keys, bytes(data)


def _key(random: Random, keys: list[int]) -> int:
    """Return a key that is in the tree, is near one, or is random."""
    near = random.choice(keys or [0]) + random.choice((0, 0, 0, 1, 2))
    return random.choice((near, near, near, random.randrange(1 << 64)))


def _btree_lookup(random: Random) -> Case:
    keys, data = _tree(random)
    return BtreeLookup(_key(random, keys)), data


def _btree_range(random: Random) -> Case:
    keys, data = _tree(random)
    first, last = sorted(_key(random, keys) for _ in range(2))
    return BtreeRange(first, last), data


def _btree_aggregate(random: Random) -> Case:
    keys, data = _tree(random)
    first, last = sorted(_key(random, keys) for _ in range(2))
    return BtreeAggregate(first, last, _field(random, 64)), data


CASES: dict[str, Callable[[Random], Case]] = {
    "aggregate": _aggregate,
    "btree_aggregate": _btree_aggregate,
    "btree_lookup": _btree_lookup,
    "btree_range": _btree_range,
    "count": _count,
    "crc32c": _crc32c,
    "grep": _grep,
    "histogram": _histogram,
}


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_device_kernel_and_python_agree(name: str, files: Path) -> None:
    with functions.load(name):
        for seed in range(ROUNDS):
            call, data = CASES[name](Random(seed))
            agree(call, files / "f", data, seed)
