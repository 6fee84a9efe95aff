# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counts of the requests of plain FUSE mounts, taken by BPF programs for as long as they are read.

Programs count at the tracepoints ``fuse_request_send`` and ``fuse_request_end`` (Linux 6.10), and
where those are missing at functions. So a request is counted that was sent and answered meanwhile;
its time is that between the two, of which what it waits in the kernel for being sent (readahead
and other background requests do) is no part.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from efuse.bpf.spec import Spec
from efuse.bpf.tracing import Hook, Tracer, shipped
from efuse.bpf.types import KernelTypes
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
"""Where the programs can be run, the best first: the hook of each."""

_MODULE = "fuse"
_LANES = struct.Struct("<32Q")  # struct count


@dataclass(frozen=True, slots=True)
class Counted:
    """What happened to the requests of one opcode on one connection.

    :ivar first_ns: when the first was answered, by CLOCK_MONOTONIC.
    :ivar ns: what they took, all together.
    :ivar latency: how many took how long, as `efuse.stats.latency` has it.
    """

    first_ns: int
    requests: int
    errors: int
    ns: int
    latency: tuple[int, ...]

    @classmethod
    def of(cls, cpus: Iterable[bytes]) -> Counted:
        """Return the sum of what each CPU has counted."""
        # All numbers at once: none of the sums needs more than its 64 bits.
        whole = sum(int.from_bytes(raw, "little") for raw in cpus)
        lanes = _LANES.unpack(whole.to_bytes(_LANES.size, "little"))
        first_ns, requests, errors, ns, *latency = lanes
        return cls(first_ns, requests, errors, ns, tuple(latency))


def request_programs() -> Spec:
    """Return the programs' spec: shipped with the package, cached, or compiled now."""
    return shipped("requests")


class RequestCounters(Closing):
    """Counts all requests of plain FUSE from now on. A context manager.

    Nothing is counted any more once it is closed, or its process has ended.

    :param hooks: where the programs may be run, the best first.
    :ivar since_ns: when it began, by CLOCK_MONOTONIC.
    :raises NotSupportedError: this kernel has no BTF, or none of the hooks.
    :raises AttachError: this task may not trace.
    """

    def __init__(self, hooks: Iterable[Mapping[str, Hook]] = HOOKS) -> None:
        self._tracer = Tracer(request_programs(), _there(hooks), module=_MODULE)
        self._counts = self._tracer.maps["counts"]
        self._missed = self._tracer.maps["missed"]
        self.since_ns = time.monotonic_ns()

    def read(self) -> dict[tuple[int, int], Counted]:
        """Return what was counted so far, by connection and opcode."""
        found = self._counts.read_all()
        return {(key & 0xFFFFFFFF, key >> 32): Counted.of(cpus) for key, cpus in found.items()}

    def missed(self) -> int:
        """Return how many requests there was no room for, or that came amid the counting of one."""
        return int(sum(self._missed[0])) + self._tracer.missed()

    def forget(self, keys: Iterable[tuple[int, int]]) -> None:
        """Make room: forget what was counted of connections that have gone."""
        for connection, opcode in keys:
            self._counts.pop(opcode << 32 | connection, None)

    def close(self) -> None:
        """Count no more. May be called again."""
        self._tracer.close()


def _there(hooks: Iterable[Mapping[str, Hook]]) -> Mapping[str, Hook]:
    """Return the first of *hooks* that this kernel has all of."""
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
