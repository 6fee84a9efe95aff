# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces of block reads on which replacement policies differ; the same every time."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator

BLOCKS = 8192
"""A trace reads blocks 0 to this - 1."""

ROOM = 1024
"""For how many of them there is room."""


def _zipf(rng: random.Random, exponent: float, order: list[int]) -> Iterator[int]:
    weights = list(itertools.accumulate(1 / (n + 1) ** exponent for n in range(len(order))))
    while True:
        yield rng.choices(order, cum_weights=weights)[0]


def _order(rng: random.Random) -> list[int]:
    return rng.sample(range(BLOCKS), BLOCKS)


def zipf(length: int) -> list[int]:
    """Few blocks are read often, as in most logs of storage: the n-th one in 1/n^0.9."""
    rng = random.Random(1)
    return list(itertools.islice(_zipf(rng, 0.9, _order(rng)), length))


def zipf_and_scans(length: int) -> list[int]:
    """Of 4000 reads 1000 are a walk through blocks that nobody reads again."""
    rng = random.Random(2)
    hot = _zipf(rng, 0.9, _order(rng)[: BLOCKS // 2])
    walk = itertools.cycle(range(BLOCKS))
    return [next(walk) if n % 4000 >= 3000 else next(hot) for n in range(length)]


def shift(length: int) -> list[int]:
    """Half-way other blocks are the popular ones."""
    rng = random.Random(3)
    halves = [_zipf(rng, 0.9, _order(rng)) for _ in range(2)]
    return [next(halves[n >= length // 2]) for n in range(length)]


def loop(length: int) -> list[int]:
    """Again and again through more blocks than there is room for: the worst for LRU."""
    return [n % (BLOCKS // 4) for n in range(length)]


TRACES = {"zipf": zipf, "zipf, scans": zipf_and_scans, "shift": shift, "loop": loop}


def lru_hits(trace: Iterable[int]) -> int:
    """How many reads of *trace* a cache answers that drops the block not read for longest."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for block in trace:
        hits += block in kept
        kept[block] = None
        kept.move_to_end(block)
        if len(kept) > ROOM:
            kept.popitem(last=False)
    return hits
