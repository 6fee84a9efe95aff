# SPDX-License-Identifier: LGPL-2.1-or-later
"""A fake of the counters of plain FUSE mounts, without a kernel."""

from __future__ import annotations

from collections.abc import Iterable

from efuse import opcodes
from efuse.bpf.requests import Counted
from efuse.stats.latency import BUCKETS

__all__ = ["FakeCounters"]


class FakeCounters:
    """A fake `efuse.bpf.requests.RequestCounters`; `count` sets the counts."""

    def __init__(self, since_ns: int = 1) -> None:
        self.since_ns = since_ns
        self.counts: dict[tuple[int, int], Counted] = {}
        self.lost = 0
        self.closed = False

    def count(
        self,
        connection: int,
        opcode: str,
        latency: dict[int, int],
        *,
        errors: int = 0,
        ns: int = 0,
        first_ns: int = 1,
    ) -> None:
        """Set the counts of an opcode.

        :param latency: number of requests by bucket.
        """
        buckets = tuple(latency.get(bucket, 0) for bucket in range(BUCKETS))
        counted = Counted(first_ns, sum(buckets), errors, ns, buckets)
        self.counts[connection, opcodes.NUMBERS[opcode]] = counted

    def read(self) -> dict[tuple[int, int], Counted]:
        return dict(self.counts)

    def missed(self) -> int:
        return self.lost

    def forget(self, keys: Iterable[tuple[int, int]]) -> None:
        for key in list(keys):
            del self.counts[key]

    def close(self) -> None:
        self.closed = True
