# SPDX-License-Identifier: LGPL-2.1-or-later
"""The transports by which requests reach a daemon, each with a proof that it was used.

The daemon is libfuse's unmodified ``passthrough_ll``, with one of two versions of libfuse; for the
transports of `efuse.bench.ring.OWN`, which libfuse does not have, it is ``passthrough_uring``. The
kernel may cache nothing, and on eFuse no handlers are attached, so the daemon gets every request.
``stamp.c`` is preloaded into it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from efuse import locations
from efuse.bench import ring
from efuse.bench.foreground import Program
from efuse.bench.load import stamp_library
from efuse.bench.programs import SID, URING, command
from efuse.bench.ring import OVER_RINGS, OWN, RINGS
from efuse.bench.systems import System, is_efuse
from efuse.bench.usage import Usage, channel_counts, switches
from efuse.bpf import attach
from efuse.control import Connection
from efuse.errors import EfuseError

__all__ = ["BALANCED", "DAEMON", "KNOWN", "SERVED_BY", "TRANSPORTS", "transported"]

DAEMON = "passthrough_ll"
"""The default daemon of all transports."""

SERVED_BY = (DAEMON, SID)
"""The daemons that can serve the transports."""

TRANSPORTS = ("fuse", "fuse-clone-fd", "efuse-queues", "efuse")
"""``fuse`` is plain FUSE, ``fuse-clone-fd`` plain FUSE with a descriptor for each thread of the
daemon. ``efuse-queues`` is eFuse with such descriptors and its queues, but without channels, and
``efuse`` is eFuse with queues and channels."""

BALANCED = (*TRANSPORTS[:-1], "efuse-own", "efuse-bpf", TRANSPORTS[-1])
"""The transports of ``skew``. ``efuse-own`` is ``efuse`` without balancing: each channel gets what
its own CPU sends. In ``efuse-bpf`` a BPF program chooses the channel of each request."""

KNOWN = (*BALANCED, *OVER_RINGS)
"""All transports. ``fuse-io-uring`` is plain FUSE over io_uring, and ``efuse-io-uring`` eFuse over
io_uring; both need a newer libfuse and kernel. ``...-zero-copy`` is the same with zero copy, and
``...-copy`` without it, both served by ``passthrough_uring``."""

_BALANCER = "least_loaded"  # one of bpf_programs/examples

# The libraries that `efuse run` preloads come first.
_PRELOADING = 'stamp=$1; shift; LD_PRELOAD="$LD_PRELOAD:$stamp" exec "$@"'
_OPTIONS = "cache=never,timeout=0"
_CLONED = ("fuse-clone-fd", "efuse-queues")


@dataclass(frozen=True, slots=True)
class _Device:
    """How a process uses the device.

    :ivar descriptors: number of open descriptors of the device.
    :ivar mappings: number of mappings of the device, one per channel.
    :ivar rings: number of io_uring rings.
    """

    descriptors: int
    mappings: int
    rings: int = 0

    @classmethod
    def of(cls, pid: int, path: str) -> _Device:
        process = Path(f"/proc/{pid}")
        links = [_target(link) for link in (process / "fd").iterdir()]
        lines = (process / "maps").read_bytes().splitlines()
        mappings = sum(line.endswith(os.fsencode(f" {path}")) for line in lines)
        return cls(links.count(path), mappings, len(ring.delivered(pid)))


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""  # The descriptor has been closed meanwhile.


class _TransportSystem(System):
    def __init__(self, name: str, root: Path, program: Program) -> None:
        super().__init__(name, root)
        self._program = program
        self.pid = program.pid
        self.connection = program.connection

    def usage(self) -> Usage:
        """Return what the daemon has done so far."""
        return replace(
            self._program.usage(),
            preempted=switches([self._program.pid], "nonvoluntary"),
            channels=channel_counts(self.connection),
            rings=ring.delivered(self._program.pid),
            moves=ring.moves(self.name, self.root),
        )

    def prove(self, before: Usage, after: Usage, requests: int) -> None:
        """Check that the daemon got all *requests*, in the intended way.

        :raises EfuseError: it did not.
        """
        path = "/dev/efuse" if is_efuse(self.name) else "/dev/fuse"
        device = _Device.of(self._program.pid, path)
        why = missed(self.name, before, after, requests) or misused(self.name, device)
        if not why and self.connection is not None:
            why = mistaken(self.name, Connection(self.connection).ops)
        if why:
            raise EfuseError(f"{self.name} was not measured: {why}")


def missed(name: str, before: Usage, after: Usage, requests: int) -> str:
    """Return why not all *requests* came by the transport *name*; empty: they did."""
    reached = after.total - before.total
    if reached < requests:
        return f"of {requests} requests only {reached} reached the daemon"
    if name in OVER_RINGS:
        return ring.missed(before, after, requests) or ring.copied(name, before, after)
    if not is_efuse(name):
        return ""
    sent = after.channel_total("sent") - before.channel_total("sent")
    if sent < requests:
        return f"of {requests} requests only {sent} were sent to the queues"
    moved = sum(
        after.channel_total(name) - before.channel_total(name) for name in ("elsewhere", "stolen")
    )
    if name == "efuse-own" and moved:
        return f"{moved} requests were moved to another CPU"
    brought = after.channel_total("brought") - before.channel_total("brought")
    if name == "efuse-queues":
        return f"{brought} requests came through channels" if brought else ""
    return f"of {requests} requests only {brought} came through channels" * (brought < requests)


def misused(name: str, device: _Device) -> str:
    """Return why a daemon with *device* does not use the transport *name*; empty: it does."""
    cpus = len(os.sched_getaffinity(0))
    if device.rings != (cpus if name in OVER_RINGS else 0):
        return f"the daemon has {device.rings} rings"
    if not is_efuse(name) or name in (*_CLONED, *OVER_RINGS):
        if device.mappings:
            return f"the daemon has {device.mappings} channels"
        if (device.descriptors > 1) != (name in _CLONED):
            return f"the daemon has {device.descriptors} descriptors"
        return ""
    return f"{device.mappings} channels for {cpus} CPUs" * (device.mappings < cpus)


def mistaken(name: str, ops: str) -> str:
    """Return why *ops*, a mount's programs, are not the transport's; empty: they are."""
    meant = _BALANCER if name == "efuse-bpf" else "none"
    return f"its program set is {ops}, not {meant}" * (ops != meant)


def _words(name: str, source: Path, mountpoint: Path, daemon: str) -> Sequence[str]:
    more = ",clone_fd" if name in _CLONED else ",io_uring" if name in RINGS else ""
    options = _OPTIONS + more
    daemon = URING if name in OWN else daemon
    words = command(daemon, name, source, mountpoint, options=options)
    # Each program executes the next one, so that the daemon keeps the process ID.
    shell = ["sh", "-c", _PRELOADING, "sh", str(stamp_library())]
    return ["env", f"EFUSE_CHANNELS={name not in (*_CLONED, *OVER_RINGS):d}", *shell, *words]


@contextmanager
def transported(
    name: str, source: Path, mountpoint: Path, daemon: str = DAEMON
) -> Iterator[System]:
    """Mount *source* on *mountpoint* by the transport *name*, served by *daemon*, and yield it.

    :raises EfuseError: it cannot be mounted.
    """
    mountpoint.mkdir(parents=True, exist_ok=True)
    words = _words(name, source, mountpoint, daemon)
    started = Program.started(words, mountpoint, accelerated=is_efuse(name))
    with ExitStack() as stack:
        if name in OVER_RINGS:
            stack.enter_context(ring.enabled(name))
        system = _TransportSystem(name, mountpoint, stack.enter_context(started))
        if system.connection is not None:
            _balance(name, system.connection, stack)
        yield system


def _balance(name: str, connection: int, stack: ExitStack) -> None:
    if name == "efuse-own":
        Connection(connection).policy = "own"
    if name == "efuse-bpf":
        text = (locations.data("bpf_programs") / "examples" / f"{_BALANCER}.c").read_text()
        handlers = {"select_channel": text}
        stack.enter_context(attach(connection, handlers, name=_BALANCER, with_builtin=False))
