# SPDX-License-Identifier: LGPL-2.1-or-later
"""``btree_lookup``, ``btree_range``, ``btree_aggregate``, over a file that `build` made.

Besides the methods of all functions, each class has ``walk()``: the reference implementation, which
reads each block when it knows its number.
"""

from __future__ import annotations

import errno
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from efuse.errors import EfuseError, UsageError
from efuse.functions.btree_file import BLOCK, CHILD, HEADER, ITEM, MAGIC, MOST, NODE, NODE_MAGIC
from efuse.functions.records import Aggregated, Field, decode_sums, encode_sums
from efuse.functions.running import failure

__all__ = ["BtreeAggregate", "BtreeLookup", "BtreeRange"]

ReadBlock = Callable[[int], bytes]
"""Returns the block with this number: 4096 bytes, or fewer at the end of the file."""

_MOST_KEY = (1 << 64) - 1
_MOST_BLOCKS = 1 << 51
_VALUE = 8  # Offset of the value in an item, bytes.
_FIRST_FIELD = Field(0)


class _RandomAccess(ABC):
    """Base of the reference implementations that go from block to block."""

    @abstractmethod
    def walk(self, read: ReadBlock) -> bytes:
        """Return the function's output over blocks that *read* returns as they are needed.

        :raises EfuseError: the function fails.
        """

    def reference(self, data: bytes) -> bytes:
        """Return the function's output over *data*, the contents of the file.

        :raises EfuseError: the function fails.
        """
        return self.walk(lambda number: data[number * BLOCK : (number + 1) * BLOCK])


@dataclass(frozen=True)
class BtreeLookup(_RandomAccess):
    """Emit the value of a key, or nothing.

    :param key: the key, 0 to 2**64 - 1.
    :raises UsageError: the key is out of range.
    """

    name: ClassVar[str] = "btree_lookup"

    key: int

    def __post_init__(self) -> None:
        _check_range(self.key, self.key)

    def encode(self) -> bytes:
        """Return the arguments as the function takes them (``struct btree_lookup_args``)."""
        return struct.pack("<Q", self.key)

    def walk(self, read: ReadBlock) -> bytes:
        """Return the function's output over blocks that *read* returns as they are needed."""
        _, leaf = next(_Walk(self.name, read).leaves(self.key))
        item = leaf[_search(leaf, self.key)] if leaf else b""
        return item[_VALUE:] if item and _key(item) == self.key else b""

    def decode(self, raw: bytes) -> bytes | None:
        """Return the value, or None if the tree does not have the key."""
        return raw or None


@dataclass(frozen=True)
class BtreeRange(_RandomAccess):
    """Emit the items whose keys are in a range.

    :param first: the smallest key of the range.
    :param last: the greatest key of the range.
    :raises UsageError: the range is empty, or not within 0 to 2**64 - 1.
    """

    name: ClassVar[str] = "btree_range"

    first: int = 0
    last: int = _MOST_KEY

    def __post_init__(self) -> None:
        _check_range(self.first, self.last)

    def encode(self) -> bytes:
        """Return the arguments as the function takes them (``struct btree_range``)."""
        return struct.pack("<QQ", self.first, self.last)

    def walk(self, read: ReadBlock) -> bytes:
        """Return the function's output over blocks that *read* returns as they are needed."""
        return b"".join(_Walk(self.name, read).items(self.first, self.last))

    def decode(self, raw: bytes) -> list[tuple[int, bytes]]:
        """Return the items as pairs of key and value."""
        return list(ITEM.iter_unpack(raw))


@dataclass(frozen=True)
class BtreeAggregate(_RandomAccess):
    """Count the items whose keys are in a range, and find the sum, least and most of a field.

    :param first: the smallest key of the range.
    :param last: the greatest key of the range.
    :param field: field of the value; by default the first 8 bytes.
    :raises UsageError: the range is empty or not within 0 to 2**64 - 1, or the field does not lie
        in a value.
    """

    name: ClassVar[str] = "btree_aggregate"

    first: int = 0
    last: int = _MOST_KEY
    field: Field = _FIRST_FIELD

    def __post_init__(self) -> None:
        _check_range(self.first, self.last)
        if self.field.offset + self.field.size > ITEM.size - _VALUE:
            raise UsageError(f"a value has no field at {self.field.offset}")

    def encode(self) -> bytes:
        """Return the arguments as the function takes them (``struct btree_aggregate_args``)."""
        return struct.pack("<QQ", self.first, self.last) + self.field.encode()

    def walk(self, read: ReadBlock) -> bytes:
        """Return the function's output over blocks that *read* returns as they are needed."""
        items = _Walk(self.name, read).items(self.first, self.last)
        return encode_sums([self.field.number(item[_VALUE:]) for item in items])

    def decode(self, raw: bytes) -> Aggregated:
        """Return the result that the function emitted."""
        return decode_sums(raw)


class _Walk:
    """A walk through a tree in the way of btree.bpf.h, with the same checks."""

    def __init__(self, name: str, read: ReadBlock) -> None:
        self._name = name
        self._read = read
        self._number = -1  # Number of the block that was read last.

    def items(self, first: int, last: int) -> Iterator[bytes]:
        """Iterate over the items whose keys are in a range."""
        before = -1
        for following, leaf in self.leaves(first):
            for item in leaf:
                if _key(item) <= before:
                    raise self._damaged()
                before = _key(item)
            yield from (item for item in leaf if first <= _key(item) <= last)
            if before > last or not following:
                return

    def leaves(self, key: int) -> Iterator[tuple[int, list[bytes]]]:
        """Iterate over the leaves, from the one for *key* on: number of the next leaf, items."""
        magic, blocks, number, level, _ = HEADER.unpack_from(self._block(0))
        if magic != MAGIC or blocks > _MOST_BLOCKS:
            raise self._damaged()
        while True:
            if not 0 < number < blocks:
                raise self._damaged()
            following, entries = self._node(number, level)
            if level:
                level -= 1
                number = CHILD.unpack(entries[_search(entries, key)])[1]
            else:
                yield following, entries
                number = following

    def _node(self, number: int, level: int) -> tuple[int, list[bytes]]:
        block = self._block(number)
        magic, its_level, count, following = NODE.unpack_from(block)
        entry = CHILD if level else ITEM
        if magic != NODE_MAGIC or its_level != level or count > MOST[entry]:
            raise self._damaged()
        if not count and (level or following):
            raise self._damaged()
        starts = range(NODE.size, NODE.size + count * entry.size, entry.size)
        return following, [block[start : start + entry.size] for start in starts]

    def _block(self, number: int) -> bytes:
        block = self._read(number)
        # In the kernel a step to the following block ends the run there, and a jump fails.
        if not block and number != self._number + 1:
            raise failure(self._name, errno.ERANGE)
        if len(block) != BLOCK:
            raise self._damaged()
        self._number = number
        return block

    def _damaged(self) -> EfuseError:
        return failure(self._name, errno.EUCLEAN)


# The same steps as btree_search(): the entries of a damaged node may be in any order.
def _search(entries: list[bytes], key: int) -> int:
    found, step = 0, 128
    while step:
        if found + step < len(entries) and _key(entries[found + step]) <= key:
            found += step
        step >>= 1
    return found


def _key(entry: bytes) -> int:
    return int.from_bytes(entry[:8], "little")


def _check_range(first: int, last: int) -> None:
    if not 0 <= first <= last <= _MOST_KEY:
        raise UsageError(f"the range of keys from {first} to {last} is empty")
