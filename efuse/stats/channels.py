# SPDX-License-Identifier: LGPL-2.1-or-later
"""What waits in the queue of each CPU, who reads it there, and what was sent elsewhere.

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
    """What decides where a request is sent and who looks for it, as in ``channels/``."""

    policy: str = "least"
    threshold: int = 1
    spread: int = 1
    spin_ns: int = 0


@dataclass(frozen=True, slots=True)
class ChannelCounters:
    """The counters of one CPU, as the files of ``channels/<cpu>/`` are named."""

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

    @property
    def poll_hit_ratio(self) -> float | None:
        """Share of the looks of workers that found a request, 0 to 1; None if none looked."""
        return _share(self.poll_hits, self.poll_hits + self.poll_misses)

    @property
    def spin_hit_ratio(self) -> float | None:
        """Share of the looks of callers that found their answer, 0 to 1; None if none looked."""
        return _share(self.spin_hits, self.spin_hits + self.spin_misses)

    @property
    def stolen_ratio(self) -> float | None:
        """Share of what was sent that was read on another CPU, 0 to 1; None if nothing was."""
        return _share(self.stolen, self.sent)


CHANNEL_COUNTERS = tuple(f.name for f in fields(ChannelCounters))
"""Names of a CPU's counters, which are the names of its files in sysfs."""


def _share(part: int, whole: int) -> float | None:
    # The counters of a busy mount are read one after the other: a part may be ahead.
    return min(1.0, part / whole) if whole else None


@dataclass(frozen=True, slots=True)
class Channel:
    """The queue of one CPU and its channel; without one ``slots`` is 0."""

    node: int = 0
    slots: int = 0
    depth: int = 0
    in_flight: int = 0
    service_ns: int = 0
    looking: int = 0
    sleeping: int = 0
    counters: ChannelCounters = field(default_factory=ChannelCounters)

    @property
    def used(self) -> bool:
        """Whether it has a channel, or anything happened on its CPU."""
        return bool(self.slots) or self.counters != ChannelCounters()


CHANNEL_STATE = tuple(f.name for f in fields(Channel) if f.name != "counters")
"""Names of the files that say how it is now, and not what happened."""


@dataclass(frozen=True, slots=True)
class ChannelGroup:
    """The channels of some CPUs as one: those of a node, or of the mount; all but times are sums.

    :ivar node: None: they are of several.
    :ivar service_ns: mean time that the daemon had a request; None where no channel knows one.
    """

    node: int | None
    cpus: tuple[int, ...]
    slots: int
    depth: int
    in_flight: int
    service_ns: float | None
    looking: int
    sleeping: int
    counters: ChannelCounters


def together(channels: Mapping[int, Channel]) -> ChannelGroup:
    """Return all *channels*, by CPU, as one group."""
    every = channels.values()
    nodes = {c.node for c in every}
    return ChannelGroup(
        node=nodes.pop() if len(nodes) == 1 else None,
        cpus=tuple(sorted(channels)),
        slots=sum(c.slots for c in every),
        depth=sum(c.depth for c in every),
        in_flight=sum(c.in_flight for c in every),
        service_ns=_mean_service_ns(channels),
        looking=sum(c.looking for c in every),
        sleeping=sum(c.sleeping for c in every),
        counters=sum((c.counters for c in every), ChannelCounters()),
    )


def _mean_service_ns(channels: Mapping[int, Channel]) -> float | None:
    """Return the mean over the requests, and where none was brought over the channels."""
    known = [c for c in channels.values() if c.service_ns]
    if not known:
        return None
    weights = [c.counters.brought for c in known]
    if not any(weights):
        weights = [1] * len(known)
    times = (c.service_ns * weight for c, weight in zip(known, weights, strict=True))
    return sum(times) / sum(weights)


def by_cpu(channels: Mapping[int, Channel]) -> tuple[ChannelGroup, ...]:
    """Return a group for each CPU, in the order of nodes."""
    order = sorted(channels, key=lambda cpu: (channels[cpu].node, cpu))
    return tuple(together({cpu: channels[cpu]}) for cpu in order)


def by_node(channels: Mapping[int, Channel]) -> tuple[ChannelGroup, ...]:
    """Return a group for each node, in their order."""
    nodes: dict[int, dict[int, Channel]] = {}
    for cpu, channel in channels.items():
        nodes.setdefault(channel.node, {})[cpu] = channel
    return tuple(together(nodes[node]) for node in sorted(nodes))


@dataclass(frozen=True, slots=True)
class ChannelRates:
    """What happened at some channels between two samples.

    :ivar group: how they are now; its ``counters`` hold the differences.
    :ivar per_second: requests put into their queues.
    :ivar load: requests that the daemon had at a time, on the mean; None where no channel
        knows how long it had them.
    :ivar elsewhere_per_second: requests sent from these CPUs to other channels than their own.
    :ivar elsewhere_share: those as a share of all that the mount sent, 0 to 1.
    :ivar stolen_share: of what was put into their queues, read on another CPU.
    :ivar poll_hit_ratio: of the looks of workers, those that found a request.
    :ivar spin_hit_ratio: of the looks of callers, those that found their answer.
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
    """Return the channels as they are in *after*, with the differences of their counters."""
    none = Channel()
    return {
        cpu: replace(now, counters=now.counters - before.get(cpu, none).counters)
        for cpu, now in after.items()
    }


def channel_rates(group: ChannelGroup, seconds: float, sent: int) -> ChannelRates:
    """Return what happened at a group of `changes`.

    :param sent: what the whole mount sent meanwhile.
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
