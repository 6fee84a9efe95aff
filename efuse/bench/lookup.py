# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lookups in a B+ tree, one after another: ``lookup.c``, compiled at its first use.

The same program does the lookups in all ways, so that only the way differs.
"""

from __future__ import annotations

import functools
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from efuse import locations
from efuse.bench.programs import compiled
from efuse.errors import EfuseError
from efuse.functions.btree_file import BLOCK, ITEM, MOST, build

__all__ = ["FANOUT", "lookup_program", "lookups", "tree", "write_tree"]

WAYS = ("device", "kernel", "auto", "pread")
FANOUT = 4
"""Children per node of the trees: small, so that a tree of six levels has only some MiB."""

_SOURCE = Path(__file__).with_name("lookup.c")
_SPACING = 7  # Every seventh number is a key.


@dataclass(frozen=True, slots=True)
class Lookups:
    """The results of the measured lookups.

    :ivar ns: total time.
    :ivar device_steps: number of blocks at which the device looked.
    :ivar kernel_steps: number of blocks at which the kernel looked.
    :ivar chained: how many of `kernel_steps` were read below the file system.
    :ivar values: the values; ``b""`` for a key that does not exist.
    """

    ns: int
    device_steps: int
    kernel_steps: int
    chained: int
    values: tuple[bytes, ...]


@functools.cache  # each device gets the same trees, and large ones take seconds to make
def tree(depth: int) -> Mapping[int, bytes]:
    """Return the items of a tree with *depth* levels, all of whose nodes are full."""
    count = MOST[ITEM] * FANOUT ** (depth - 1)
    return {_SPACING * n: struct.pack("<q56s", n, b"item %d" % n) for n in range(count)}


@functools.cache
def _contents(depth: int) -> bytes:
    return build(tree(depth).items(), fanout=FANOUT)


def write_tree(path: Path, depth: int) -> int:
    """Write a file with the tree of *depth* levels, and return its number of blocks."""
    return path.write_bytes(_contents(depth)) // BLOCK


def lookup_program() -> Path:
    """Return the path of the program; compile it if it is not in the cache."""
    include = locations.data("csd") / "include" / "uapi"
    header = include / "linux" / "csd.h"
    return compiled("programs", "lookup", [_SOURCE, header], [f"-I{include}"])


def lookups(path: Path, way: str, keys: Sequence[int], *, warm: int, direct: bool) -> Lookups:
    """Look keys up. ``btree_lookup`` must be loaded.

    :param way: one of `WAYS`.
    :param warm: number of *keys* at the beginning that are not measured.
    :param direct: use O_DIRECT, which bypasses the page cache.
    :raises EfuseError: a lookup failed.
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
