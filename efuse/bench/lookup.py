# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lookups in a B+ tree, one after the other: ``lookup.c``, compiled at its first use.

All ways are asked for by the same program, so that what differs is the way.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from efuse import paths
from efuse.bench.programs import compiled
from efuse.errors import EfuseError
from efuse.functions.btree_file import BLOCK, ITEM, MOST, build

__all__ = ["FANOUT", "WAYS", "Lookups", "lookup_program", "lookups", "tree", "write_tree"]

WAYS = ("device", "kernel", "auto", "pread")
FANOUT = 4
"""Of the trees: a tree of six levels is to have some MiB, and not more than any disk."""

_SOURCE = Path(__file__).with_name("lookup.c")
_SPACING = 7  # One number in so many is a key.


@dataclass(frozen=True, slots=True)
class Lookups:
    """What came of lookups.

    :ivar ns: that they took together.
    :ivar device_steps: blocks that the device has looked at, not those of the lookups before.
    :ivar kernel_steps: likewise the kernel.
    :ivar chained: of the latter, those below the file system.
    :ivar values: the answers; ``b""``: there is no such key.
    """

    ns: int
    device_steps: int
    kernel_steps: int
    chained: int
    values: tuple[bytes, ...]


def tree(depth: int) -> dict[int, bytes]:
    """Return the items of a tree of so many levels, all of whose nodes are full."""
    count = MOST[ITEM] * FANOUT ** (depth - 1)
    return {_SPACING * n: struct.pack("<q56s", n, b"item %d" % n) for n in range(count)}


def write_tree(path: Path, items: Mapping[int, bytes]) -> int:
    """Make a file with the tree of such items, and return how many blocks it has."""
    raw = build(items.items(), fanout=FANOUT)
    path.write_bytes(raw)
    return len(raw) // BLOCK


def lookup_program() -> Path:
    """Return the program, compiled now if it is not in the cache."""
    include = paths.data("csd") / "include" / "uapi"
    header = include / "linux" / "csd.h"
    return compiled("programs", "lookup", [_SOURCE, header], [f"-I{include}"])


def lookups(path: Path, way: str, keys: Sequence[int], *, warm: int, direct: bool) -> Lookups:
    """Look keys up, while ``btree_lookup`` is loaded.

    :param way: one of `WAYS`.
    :param warm: of *keys*, those at the beginning that are not measured.
    :param direct: with O_DIRECT: neither looks into the page cache nor leaves something there.
    :raises EfuseError: some lookup failed.
    """
    words = [lookup_program(), path, way, int(direct), warm]
    done = subprocess.run(
        [str(word) for word in words],
        input=struct.pack(f"={len(keys)}Q", *keys),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        why = done.stderr.decode().strip() or f"exit status {done.returncode}"
        raise EfuseError(f"the lookups failed: {why}")
    first, *lines = done.stdout.decode().splitlines()
    ns, device, kernel, chained = map(int, first.split())
    return Lookups(ns, device, kernel, chained, tuple(map(bytes.fromhex, lines)))
