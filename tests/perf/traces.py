# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces of block reads on which replacement policies differ. They are always the same."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator

BLOCKS = 8192
"""A trace reads blocks from 0 to BLOCKS - 1."""

ROOM = 1024
"""Number of blocks for which the cache has room."""


def _zipf(rng: random.Random, exponent: float, order: list[int]) -> Iterator[int]:
    weights = list(itertools.accumulate(1 / (n + 1) ** exponent for n in range(len(order))))
    while True:
        yield rng.choices(order, cum_weights=weights)[0]


def _order(rng: random.Random) -> list[int]:
    return rng.sample(range(BLOCKS), BLOCKS)


def zipf(length: int) -> list[int]:
    """Return a trace that reads few blocks often, as in most logs: the n-th one with 1/n^0.9."""
    rng = random.Random(1)
    return list(itertools.islice(_zipf(rng, 0.9, _order(rng)), length))


def zipf_and_scans(length: int) -> list[int]:
    """Return a trace in which 1000 of each 4000 reads walk through blocks not read again."""
    rng = random.Random(2)
    hot = _zipf(rng, 0.9, _order(rng)[: BLOCKS // 2])
    walk = itertools.cycle(range(BLOCKS))
    return [next(walk) if n % 4000 >= 3000 else next(hot) for n in range(length)]


def shift(length: int) -> list[int]:
    """Return a trace whose popular blocks change half-way."""
    rng = random.Random(3)
    halves = [_zipf(rng, 0.9, _order(rng)) for _ in range(2)]
    return [next(halves[n >= length // 2]) for n in range(length)]


def loop(length: int) -> list[int]:
    """Return a trace that repeats more blocks than fit into the cache: the worst case for LRU."""
    return [n % (BLOCKS // 4) for n in range(length)]


TRACES = {"zipf": zipf, "zipf, scans": zipf_and_scans, "shift": shift, "loop": loop}


def lru_hits(trace: Iterable[int]) -> int:
    """Return how many reads of *trace* an LRU cache answers."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for block in trace:
        hits += block in kept
        kept[block] = None
        kept.move_to_end(block)
        if len(kept) > ROOM:
            kept.popitem(last=False)
    return hits
