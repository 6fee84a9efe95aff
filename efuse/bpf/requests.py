# SPDX-License-Identifier: LGPL-2.1-or-later
"""Count the requests of plain FUSE mounts with BPF programs, for as long as they are read.

The programs run at the tracepoints ``fuse_request_send`` and ``fuse_request_end`` (Linux 6.10), or
at functions where those are missing. A request counts if it is sent and answered while the programs
are attached. Its time runs from one hook to the other, so it does not include the time that a
background request (such as readahead) waits in the kernel before it is sent.

`efuse.bench.counter` counts the requests of one mount without programs, for benchmarks.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from efuse.bpf.kernel_types import KernelTypes
from efuse.bpf.spec import Spec
from efuse.bpf.tracing import Hook, Tracer, shipped
from efuse.closing import Closing
from efuse.errors import NotSupportedError

__all__ = ["HOOKS", "Counted", "RequestCounters", "request_programs"]

HOOKS: tuple[Mapping[str, Hook], ...] = (
    MappingProxyType(
        {
            "send": Hook("tp_btf", "fuse_request_send"),
            "end": Hook("tp_btf", "fuse_request_end"),
        }
    ),
    MappingProxyType(
        {
            "queue": Hook("fentry", "fuse_dev_queue_req"),
            "end": Hook("fentry", "fuse_request_end"),
        }
    ),
    MappingProxyType(
        {
            "queue": Hook("fentry", "queue_request_and_unlock"),
            "end": Hook("fentry", "fuse_request_end"),
        }
    ),
)
"""Alternative sets of hooks, the best first: the hook of each program, by name."""

_MODULE = "fuse"
_LANES = struct.Struct("<32Q")  # struct count


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters for the requests of one opcode on one connection.

    :ivar first_ns: time of the first answer, in ns of CLOCK_MONOTONIC.
    :ivar requests: number of answered requests.
    :ivar errors: number of requests that were answered with an error.
    :ivar ns: total time of the requests, in ns.
    :ivar latency: histogram of their times, with the buckets of `efuse.stats.latency`.
    """

    first_ns: int
    requests: int
    errors: int
    ns: int
    latency: tuple[int, ...]

    @classmethod
    def of(cls, cpus: Iterable[bytes]) -> Counted:
        """Return the sum of the counters of all CPUs."""
        # One addition sums all lanes: no lane needs more than its 64 bits.
        whole = sum(int.from_bytes(raw, "little") for raw in cpus)
        lanes = _LANES.unpack(whole.to_bytes(_LANES.size, "little"))
        first_ns, requests, errors, ns, *latency = lanes
        return cls(first_ns, requests, errors, ns, tuple(latency))


def request_programs() -> Spec:
    """Return the spec of the programs: shipped with the package, cached, or compiled now."""
    return shipped("requests")


class RequestCounters(Closing):
    """Count all requests of plain FUSE mounts from now on. A context manager.

    Counting stops when it is closed, or when the process ends.

    :param hooks: alternative sets of hooks, the best first.
    :ivar since_ns: time at which counting started, in ns of CLOCK_MONOTONIC.
    :raises NotSupportedError: the kernel has no BTF, or none of the sets of hooks.
    :raises AttachError: this process may not trace.
    """

    def __init__(self, hooks: Iterable[Mapping[str, Hook]] = HOOKS) -> None:
        self._tracer = Tracer(request_programs(), _there(hooks), module=_MODULE)
        self._counts = self._tracer.maps["counts"]
        self._missed = self._tracer.maps["missed"]
        self.since_ns = time.monotonic_ns()

    def read(self) -> dict[tuple[int, int], Counted]:
        """Return the counters so far, by (connection, opcode number)."""
        found = self._counts.read_all()
        return {(key & 0xFFFFFFFF, key >> 32): Counted.of(cpus) for key, cpus in found.items()}

    def missed(self) -> int:
        """Return how many requests were not counted: no room, or a program was already running."""
        return int(sum(self._missed[0])) + self._tracer.missed()

    def forget(self, keys: Iterable[tuple[int, int]]) -> None:
        """Delete the counters of *keys*, (connection, opcode number), to make room."""
        for connection, opcode in keys:
            self._counts.pop(opcode << 32 | connection, None)

    def close(self) -> None:
        """Stop counting. Further calls do nothing."""
        self._tracer.close()


def _there(hooks: Iterable[Mapping[str, Hook]]) -> Mapping[str, Hook]:
    """Return the first set of *hooks* that this kernel has completely."""
    wanted = list(hooks)
    with KernelTypes(_MODULE) as types:
        for each in wanted:
            if all(_is_there(hook, types) for hook in each.values()):
                return each
    names = " or ".join(sorted({hook.name for each in wanted for hook in each.values()}))
    raise NotSupportedError(
        "requests of plain FUSE mounts cannot be counted: this kernel has neither the tracepoints"
        f" nor the functions to hook into ({names})",
        hint="a kernel of 6.10 or later with CONFIG_DEBUG_INFO_BTF=y",
    )


def _is_there(hook: Hook, types: KernelTypes) -> bool:
    try:
        hook.type_id(types)
    except KeyError:
        return False
    return True
