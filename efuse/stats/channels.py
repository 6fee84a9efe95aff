# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counters and rates of the channels of a mount: the queues of CPUs, and their workers.

Pure values, as in `efuse.stats.model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

__all__ = [
    "CHANNEL_COUNTERS",
    "CHANNEL_STATE",
    "Balance",
    "Channel",
    "ChannelCounters",
    "ChannelGroup",
    "ChannelRates",
    "by_cpu",
    "by_node",
    "changes",
    "channel_rates",
    "together",
]


@dataclass(frozen=True, slots=True)
class Balance:
    """Settings of ``channels/``: where a request is sent, and how long workers and callers spin."""

    policy: str = "least"
    threshold: int = 1
    spread: int = 1
    spin_ns: int = 0


@dataclass(frozen=True, slots=True)
class ChannelCounters:
    """Counters of one CPU, named as the lines of ``channels/<cpu>``."""

    sent: int = 0
    stolen: int = 0
    poll_hits: int = 0
    poll_misses: int = 0
    spin_hits: int = 0
    spin_misses: int = 0
    elsewhere: int = 0
    others_woken: int = 0
    brought: int = 0
    refused: int = 0

    def __add__(self, other: ChannelCounters) -> ChannelCounters:
        return ChannelCounters(*(getattr(self, n) + getattr(other, n) for n in CHANNEL_COUNTERS))

    def __sub__(self, before: ChannelCounters) -> ChannelCounters:
        return ChannelCounters(*(getattr(self, n) - getattr(before, n) for n in CHANNEL_COUNTERS))

    def has_decreased(self, before: ChannelCounters) -> bool:
        """Return whether a counter is lower than in *before*, an earlier sample."""
        return any(getattr(self, name) < getattr(before, name) for name in CHANNEL_COUNTERS)

    @property
    def poll_hit_ratio(self) -> float | None:
        """Share of worker polls that found a request, 0 to 1; None if no worker polled."""
        return _share(self.poll_hits, self.poll_hits + self.poll_misses)

    @property
    def spin_hit_ratio(self) -> float | None:
        """Share of caller spins that found the answer, 0 to 1; None if no caller spun."""
        return _share(self.spin_hits, self.spin_hits + self.spin_misses)

    @property
    def stolen_ratio(self) -> float | None:
        """Share of sent requests that were read on another CPU, 0 to 1; None if none was sent."""
        return _share(self.stolen, self.sent)


CHANNEL_COUNTERS = tuple(f.name for f in fields(ChannelCounters))
"""Names of a CPU's counters, which are names of lines in sysfs."""


def _share(part: int, whole: int) -> float | None:
    # Counters of a busy mount are read one after another, so the part can exceed the whole.
    return min(1.0, part / whole) if whole else None


@dataclass(frozen=True, slots=True)
class Channel:
    """State and counters of one CPU's queue and channel. ``slots`` is 0 if it has no channel."""

    node: int = 0
    slots: int = 0
    depth: int = 0
    in_flight: int = 0
    service_ns: int = 0
    polling: int = 0
    sleeping: int = 0
    counters: ChannelCounters = field(default_factory=ChannelCounters)

    @property
    def used(self) -> bool:
        """Whether the CPU has a channel, or any of its counters is not 0."""
        return bool(self.slots) or self.counters != ChannelCounters()


CHANNEL_STATE = tuple(f.name for f in fields(Channel) if f.name != "counters")
"""Names of the lines that hold the present state, not a counter."""


@dataclass(frozen=True, slots=True)
class ChannelGroup:
    """The channels of several CPUs as one. Everything except ``service_ns`` is a sum.

    :ivar node: NUMA node of the CPUs; None if they are on several nodes.
    :ivar cpus: numbers of the CPUs.
    :ivar service_ns: mean time that the daemon had a request, in ns; None if no channel has
        measured it.
    """

    node: int | None
    cpus: tuple[int, ...]
    slots: int
    depth: int
    in_flight: int
    service_ns: float | None
    polling: int
    sleeping: int
    counters: ChannelCounters


def together(channels: Mapping[int, Channel]) -> ChannelGroup:
    """Return the group of all *channels*, which are given by CPU."""
    every = channels.values()
    nodes = {c.node for c in every}
    return ChannelGroup(
        node=nodes.pop() if len(nodes) == 1 else None,
        cpus=tuple(sorted(channels)),
        slots=sum(c.slots for c in every),
        depth=sum(c.depth for c in every),
        in_flight=sum(c.in_flight for c in every),
        service_ns=_mean_service_ns(channels),
        polling=sum(c.polling for c in every),
        sleeping=sum(c.sleeping for c in every),
        counters=sum((c.counters for c in every), ChannelCounters()),
    )


def _mean_service_ns(channels: Mapping[int, Channel]) -> float | None:
    """Return the mean weighted by delivered requests, or unweighted if none was delivered."""
    known = [c for c in channels.values() if c.service_ns]
    if not known:
        return None
    weights = [c.counters.brought for c in known]
    if not any(weights):
        weights = [1] * len(known)
    times = (c.service_ns * weight for c, weight in zip(known, weights, strict=True))
    return sum(times) / sum(weights)


def by_cpu(channels: Mapping[int, Channel]) -> tuple[ChannelGroup, ...]:
    """Return one group per CPU, ordered by node."""
    order = sorted(channels, key=lambda cpu: (channels[cpu].node, cpu))
    return tuple(together({cpu: channels[cpu]}) for cpu in order)


def by_node(channels: Mapping[int, Channel]) -> tuple[ChannelGroup, ...]:
    """Return one group per NUMA node, in order."""
    nodes: dict[int, dict[int, Channel]] = {}
    for cpu, channel in channels.items():
        nodes.setdefault(channel.node, {})[cpu] = channel
    return tuple(together(nodes[node]) for node in sorted(nodes))


@dataclass(frozen=True, slots=True)
class ChannelRates:
    """Activity of a group of channels between two samples.

    :ivar group: state of the channels at the later sample; its ``counters`` hold the differences.
    :ivar per_second: requests put into their queues, per second.
    :ivar load: mean number of requests that the daemon had at a time; None if no channel has
        measured its service time.
    :ivar elsewhere_per_second: requests sent from these CPUs to channels of other CPUs, per second.
    :ivar stolen_per_second: requests from these queues that were read on another CPU, per second.
    :ivar elsewhere_share: requests sent to channels of other CPUs, as a share of all requests of
        the mount, 0 to 1.
    :ivar stolen_share: share of the requests put into these queues that were read on another CPU.
    :ivar poll_hit_ratio: share of worker polls that found a request.
    :ivar spin_hit_ratio: share of caller spins that found the answer.
    """

    group: ChannelGroup
    per_second: float
    load: float | None
    elsewhere_per_second: float
    stolen_per_second: float
    elsewhere_share: float | None
    stolen_share: float | None
    poll_hit_ratio: float | None
    spin_hit_ratio: float | None


def changes(before: Mapping[int, Channel], after: Mapping[int, Channel]) -> dict[int, Channel]:
    """Return the channels in *after*, with counters relative to *before*."""
    none = Channel()
    return {
        cpu: replace(now, counters=now.counters - before.get(cpu, none).counters)
        for cpu, now in after.items()
    }


def channel_rates(group: ChannelGroup, seconds: float, sent: int) -> ChannelRates:
    """Return the activity of a group of the channels that `changes` returned.

    :param seconds: time between the samples.
    :param sent: requests that the whole mount sent in that time.
    """
    counters = group.counters
    busy_ns = None if group.service_ns is None else group.service_ns * counters.brought
    return ChannelRates(
        group=group,
        per_second=counters.sent / seconds,
        load=None if busy_ns is None else busy_ns / 1e9 / seconds,
        elsewhere_per_second=counters.elsewhere / seconds,
        stolen_per_second=counters.stolen / seconds,
        elsewhere_share=_share(counters.elsewhere, sent),
        stolen_share=counters.stolen_ratio,
        poll_hit_ratio=counters.poll_hit_ratio,
        spin_hit_ratio=counters.spin_hit_ratio,
    )
