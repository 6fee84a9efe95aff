# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples of a mount's counters, and the rates between two of them.

Pure values: nothing here reads a file or a clock. The terminal, ``--json`` and the tests all use
these fields.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from operator import add, attrgetter, sub
from typing import Any

from efuse.stats.channels import (
    Balance,
    Channel,
    ChannelRates,
    by_cpu,
    by_node,
    changes,
    channel_rates,
    together,
)
from efuse.stats.latency import Latency, added, quantile_ns
from efuse.stats.paths import PathCounters, PathRates, path_rates

__all__ = [
    "COUNTERS",
    "REASONS",
    "Counters",
    "DaemonEnd",
    "MapUsage",
    "MountRates",
    "OpcodeRates",
    "Sample",
    "between",
    "rates",
]

REASONS = (
    "miss",
    "stale",
    "expired",
    "other_uid",
    "not_alive",
    "no_handler",
    "declined",
    "invalid_verdict",
    "unmapped",
    "failed",
)
"""Reasons why a request went to the daemon, which are the names of their counters."""

# Counters that advance only while a process watches times.
_TIMES = ("hit_ns", "hit_timed", "daemon_ns", "daemon_timed")


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of one opcode, named as the lines of ``stats/<opcode>``."""

    requests: int = 0
    hits: int = 0
    refused: int = 0
    daemon: int = 0
    errors: int = 0
    miss: int = 0
    stale: int = 0
    expired: int = 0
    other_uid: int = 0
    not_alive: int = 0
    no_handler: int = 0
    declined: int = 0
    invalid_verdict: int = 0
    unmapped: int = 0
    failed: int = 0
    hit_ns: int = 0
    hit_timed: int = 0
    daemon_ns: int = 0
    daemon_timed: int = 0

    def __add__(self, other: "Counters") -> "Counters":
        return Counters(*map(add, _numbers(self), _numbers(other)))

    def __sub__(self, before: "Counters") -> "Counters":
        return Counters(*map(sub, _numbers(self), _numbers(before)))

    @property
    def hit_ratio(self) -> float | None:
        """Share of the requests that the kernel answered, 0 to 1; None without requests."""
        # Counters of a busy mount are read one after another, so hits can exceed requests.
        return min(1.0, self.hits / self.requests) if self.requests else None

    @property
    def passed(self) -> dict[str, int]:
        """Number of requests that went to the daemon, by reason, largest first, without zeros."""
        counts = {reason: int(getattr(self, reason)) for reason in REASONS}
        return dict(sorted((i for i in counts.items() if i[1]), key=lambda i: (-i[1], i[0])))

    @property
    def hit_mean_ns(self) -> float | None:
        """Mean time of the measured answers of the kernel, in ns; None if none was measured."""
        return self.hit_ns / self.hit_timed if self.hit_timed else None

    @property
    def daemon_mean_ns(self) -> float | None:
        """Mean time of the measured answers of the daemon, in ns; None if none was measured."""
        return self.daemon_ns / self.daemon_timed if self.daemon_timed else None

    def untimed(self) -> "Counters":
        """Return the counters with all times set to 0."""
        return Counters(*_numbers(self)[: -len(_TIMES)])


_NONE = Counters()

COUNTERS = tuple(f.name for f in fields(Counters))
"""Names of an opcode's counters, which are the names of its lines in sysfs."""

_numbers = attrgetter(*COUNTERS)  # much faster than one getattr() per counter


def _sum(every: Iterable[Counters]) -> Counters:
    numbers = zip(*map(_numbers, every), strict=True)
    return Counters(*map(sum, numbers))


@dataclass(frozen=True, slots=True)
class MapUsage:
    """Usage of one BPF map of a mount: elements in use, and the capacity in elements."""

    name: str
    used: int
    capacity: int

    @property
    def ratio(self) -> float:
        """Share of the capacity that is in use, 0 to 1."""
        return self.used / self.capacity if self.capacity else 0.0


@dataclass(frozen=True, slots=True)
class DaemonEnd:
    """The end of a daemon that left its mount, and what became of its requests.

    :ivar time: seconds since 1970; 0: no daemon has ended so.
    :ivar lost: requests that it had not answered.
    :ivar resent: requests that were sent again.
    :ivar settled: requests that were found to be carried out, without sending them again.
    :ivar failed: requests that failed.
    :ivar gap_ns: time until a successor served, or until the sample was taken, in ns.
    """

    time: int = 0
    lost: int = 0
    resent: int = 0
    settled: int = 0
    failed: int = 0
    gap_ns: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """State and counters of one mount at one moment.

    :ivar connection: number of the connection.
    :ivar taken_ns: time of the sample, in ns of CLOCK_MONOTONIC.
    :ivar mountpoint: mount point; empty if the reader does not see the mount.
    :ivar kind: ``efuse``, or ``fuse`` for a mount of the kernel's own FUSE, whose requests all go
        to the daemon.
    :ivar since_ns: time since which requests have been counted, in ns of CLOCK_MONOTONIC; 0 since
        the mount; None if they are not counted.
    :ivar state: ``attached`` if a program set is attached, else ``plain``.
    :ivar ops: name of the attached program set, or ``none``.
    :ivar enable_seq: number of program sets attached since the mount.
    :ivar consistency: consistency mode.
    :ivar exit_info: why a program set was last detached.
    :ivar recovery: how long callers wait for a successor of the daemon, in seconds.
    :ivar daemon: ``serving``, ``dead``, ``starting`` or ``none``, see docs/sysfs.md.
    :ivar incarnation: successors that have taken the mount over.
    :ivar last_end: the end of the last daemon that died while ``recovery`` was set.
    :ivar waiting: requests in flight at the daemon; None if the kernel does not show it.
    :ivar io_uring: whether the daemon receives its requests by io_uring.
    :ivar learned: values handed to the maps.
    :ivar map_full: values that the maps did not take.
    :ivar invalid_verdicts: invalid verdicts of handlers.
    :ivar opcodes: counters of each opcode that was requested, by name.
    :ivar latency: times of the daemon by opcode, for a ``fuse`` mount, with the buckets of
        `efuse.stats.latency`.
    :ivar paths: counters of each path of READs and WRITEs, by name.
    :ivar balance: settings of the channels.
    :ivar channels: each CPU that has a channel or any activity, by number.
    :ivar maps: usage of the maps, if it was counted.
    :ivar timing: whether times were read. If not, they are 0.
    """

    connection: int
    taken_ns: int
    mountpoint: str = ""
    kind: str = "efuse"
    since_ns: int | None = 0
    state: str = "plain"
    ops: str = "none"
    enable_seq: int = 0
    consistency: str = "ttl"
    exit_info: str = "none"
    recovery: int = 0
    daemon: str = "serving"
    incarnation: int = 0
    last_end: DaemonEnd = field(default_factory=DaemonEnd)
    waiting: int | None = 0
    io_uring: bool = False
    learned: int = 0
    map_full: int = 0
    invalid_verdicts: int = 0
    opcodes: Mapping[str, Counters] = field(default_factory=dict)
    latency: Mapping[str, Latency] = field(default_factory=dict)
    paths: Mapping[str, PathCounters] = field(default_factory=dict)
    balance: Balance = field(default_factory=Balance)
    channels: Mapping[int, Channel] = field(default_factory=dict)
    maps: tuple[MapUsage, ...] = ()
    timing: bool = True

    @property
    def total(self) -> Counters:
        """Sum of the counters of all opcodes."""
        return _sum(self.opcodes.values())

    @property
    def is_plain(self) -> bool:
        """Whether the mount belongs to the kernel's own FUSE."""
        return self.kind == "fuse"

    @property
    def counted_ns(self) -> int | None:
        """Time since counting began, in ns; None if it began with the mount, or does not happen."""
        return self.taken_ns - self.since_ns if self.since_ns else None

    @property
    def total_latency(self) -> Latency:
        """Sum of the histograms of all opcodes."""
        return added(list(self.latency.values()))

    @property
    def has_channels(self) -> bool:
        """Whether the daemon has created channels, or requests wait in the queues of CPUs."""
        return any(c.slots or c.depth for c in self.channels.values())

    def json(self) -> dict[str, Any]:
        """Return all fields as plain values for ``json.dumps``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class OpcodeRates:
    """Activity of one opcode between two samples.

    ``counters`` holds the differences, ``passed`` the number of requests that went to the daemon by
    reason. ``latency``, and ``p50_ns`` and ``p99_ns`` from it, exist for plain FUSE mounts only;
    those have no ``hit_ratio``. All times are in ns.
    """

    opcode: str
    per_second: float
    daemon_per_second: float
    hit_ratio: float | None
    passed: Mapping[str, int]
    hit_mean_ns: float | None
    daemon_mean_ns: float | None
    counters: Counters
    errors_per_second: float = 0.0
    p50_ns: float | None = None
    p99_ns: float | None = None
    latency: Latency = ()


@dataclass(frozen=True, slots=True)
class MountRates:
    """Activity of one mount between two samples.

    :ivar after: the later sample.
    :ivar interval_ns: time between the samples, in ns.
    :ivar total: activity of all opcodes together.
    :ivar opcodes: activity of each opcode.
    :ivar paths: activity of each path that was taken.
    :ivar channels: activity of each CPU in ``after.channels``.
    :ivar nodes: activity of each NUMA node of these CPUs.
    :ivar channel_total: activity of all channels together; None without channels.
    """

    after: Sample
    interval_ns: int
    total: OpcodeRates
    opcodes: tuple[OpcodeRates, ...]
    paths: tuple[PathRates, ...] = ()
    channels: tuple[ChannelRates, ...] = ()
    nodes: tuple[ChannelRates, ...] = ()
    channel_total: ChannelRates | None = None

    def json(self) -> dict[str, Any]:
        """Return all fields as plain values for ``json.dumps``."""
        return asdict(self)


def rates(before: Sample, after: Sample) -> MountRates:
    """Return the activity between two samples of one connection, for each opcode with requests.

    Times are computed only if both samples have them. A counter that *before* does not have is
    taken as 0 there. If a counter has decreased, another mount has got the number of the
    connection, and all counters are taken as 0 in *before*.

    :raises ValueError: the samples are of different connections, or in the wrong order.
    """
    if before.connection != after.connection:
        raise ValueError(
            f"samples of different connections, {before.connection} and {after.connection}"
        )
    interval_ns = after.taken_ns - max(before.taken_ns, after.since_ns or 0)
    if interval_ns <= 0:
        raise ValueError("the samples are in the wrong order")
    timing = before.timing and after.timing
    if before.since_ns != after.since_ns or _has_restarted(before, after, timing):
        before = Sample(before.connection, before.taken_ns)
    parts = []
    for opcode, now in sorted(after.opcodes.items()):
        change = now - before.opcodes.get(opcode, _NONE)
        if change != _NONE:
            latency = _since(before.latency.get(opcode, ()), after.latency.get(opcode, ()))
            parts.append(_opcode_rates(opcode, change, latency, interval_ns, timing))
    if after.is_plain:
        parts = [replace(part, hit_ratio=None) for part in parts]
    total = _sum(part.counters for part in parts)
    latency = added([part.latency for part in parts])
    whole = _opcode_rates("total", total, latency, interval_ns, timing)
    seconds = interval_ns / 1e9
    channels = changes(before.channels, after.channels)
    every = together(channels)
    sent = every.counters.sent
    return MountRates(
        after,
        interval_ns,
        replace(whole, hit_ratio=None) if after.is_plain else whole,
        tuple(parts),
        path_rates(before.paths, after.paths, seconds, timing),
        channels=tuple(channel_rates(group, seconds, sent) for group in by_cpu(channels)),
        nodes=tuple(channel_rates(group, seconds, sent) for group in by_node(channels)),
        channel_total=channel_rates(every, seconds, sent) if channels else None,
    )


def _has_restarted(before: Sample, after: Sample, timing: bool) -> bool:
    """Return whether a counter has decreased: *after* is a sample of another mount."""
    for opcode, then in before.opcodes.items():
        change = after.opcodes.get(opcode, _NONE) - then
        if min(_numbers(change if timing else change.untimed())) < 0:
            return True
    no_path, no_channel = PathCounters(), Channel()
    return (
        after.enable_seq < before.enable_seq
        or any(
            after.paths.get(path, no_path).has_decreased(then, timing)
            for path, then in before.paths.items()
        )
        or any(
            after.channels.get(cpu, no_channel).counters.has_decreased(then.counters)
            for cpu, then in before.channels.items()
        )
    )


def _since(before: Latency, after: Latency) -> Latency:
    if not before:
        return after
    return tuple(now - then for now, then in zip(after, before, strict=True))


def between(before: Iterable[Sample], after: Iterable[Sample]) -> list[MountRates]:
    """Return the rates of every mount that is in both, in the order of *after*."""
    earlier = {sample.connection: sample for sample in before}
    return [rates(earlier[s.connection], s) for s in after if s.connection in earlier]


def _opcode_rates(
    opcode: str, change: Counters, latency: Latency, interval_ns: int, timing: bool
) -> OpcodeRates:
    seconds = interval_ns / 1e9
    if not timing:
        change = change.untimed()
    return OpcodeRates(
        opcode=opcode,
        per_second=change.requests / seconds,
        daemon_per_second=change.daemon / seconds,
        hit_ratio=change.hit_ratio,
        passed=change.passed,
        hit_mean_ns=change.hit_mean_ns,
        daemon_mean_ns=change.daemon_mean_ns,
        counters=change,
        errors_per_second=change.errors / seconds,
        p50_ns=quantile_ns(latency, 0.5),
        p99_ns=quantile_ns(latency, 0.99),
        latency=latency,
    )
