# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that hold a B+ tree with keys of 8 bytes and values of 64 bytes; see ``btree.bpf.h``."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from efuse.errors import UsageError

__all__ = ["BLOCK", "CHILD", "HEADER", "ITEM", "MAGIC", "MOST", "NODE", "NODE_MAGIC", "build"]

BLOCK = 4096
MAGIC = b"e_btree1"
NODE_MAGIC = b"node"
HEADER = struct.Struct("<8sQQII")
"""Magic, blocks of the file, block of the root, level of the root, 0 (``struct btree_header``)."""
NODE = struct.Struct("<4sHHQ")
"""Magic, level, number of entries, block of the next leaf or 0 (``struct btree_node``)."""
ITEM = struct.Struct("<Q64s")
"""Key, value (``struct btree_item``)."""
CHILD = struct.Struct("<QQ")
"""Least key below the child, block of the child (``struct btree_child``)."""
MOST = {entry: (BLOCK - NODE.size) // entry.size for entry in (ITEM, CHILD)}
"""Most entries that a node can hold, by type of entry."""

_VALUE_BYTES = 64
_KEYS = 1 << 64


def build(items: Iterable[tuple[int, bytes]], *, fanout: int = MOST[CHILD]) -> bytes:
    """Return the contents of a file with a B+ tree: the leaves in order of keys, the root last.

    :param items: pairs of a key, 0 to 2**64 - 1, and a value of 64 bytes; keys must increase.
    :param fanout: most children of a node, 2 to 255. Fewer children make a deeper tree.
    :raises UsageError: the items or the fan-out do not meet these conditions.
    """
    if not 2 <= fanout <= MOST[CHILD]:
        raise UsageError(
            f"a node cannot have {fanout} children", hint=f"2 to {MOST[CHILD]} are possible"
        )
    entries = [(key, ITEM.pack(key, value)) for key, value in _checked(items)]
    below, blocks = _level(entries, 0, MOST[ITEM], 1)
    level = 0
    while len(below) > 1:
        level += 1
        entries = [(key, CHILD.pack(key, block)) for key, block in below]
        below, more = _level(entries, level, fanout, 1 + len(blocks))
        blocks += more
    header = HEADER.pack(MAGIC, 1 + len(blocks), len(blocks), level, 0)
    return b"".join(block.ljust(BLOCK, b"\0") for block in (header, *blocks))


def _checked(items: Iterable[tuple[int, bytes]]) -> Iterable[tuple[int, bytes]]:
    before = -1
    for key, value in items:
        if not before < key < _KEYS:
            raise UsageError(f"the key {key} cannot follow {before}", hint="sort the items")
        if len(value) != _VALUE_BYTES:
            raise UsageError(f"the value of {key} has {len(value)} bytes, not {_VALUE_BYTES}")
        before = key
        yield key, value


def _level(
    entries: list[tuple[int, bytes]], level: int, most: int, first: int
) -> tuple[list[tuple[int, int]], list[bytes]]:
    """Build the nodes of one level. The first becomes block number *first*.

    :returns: least key and block number of each node; contents of the nodes.
    """
    index: list[tuple[int, int]] = []
    blocks: list[bytes] = []
    for start in range(0, len(entries) or 1, most):
        some = entries[start : start + most]
        block = first + len(blocks)
        last = level > 0 or start + most >= len(entries)
        head = NODE.pack(NODE_MAGIC, level, len(some), 0 if last else block + 1)
        index.append((some[0][0] if some else 0, block))
        blocks.append(head + b"".join(raw for _, raw in some))
    return index, blocks
