# SPDX-License-Identifier: LGPL-2.1-or-later
"""Channels in samples and rates: by CPU, by node and all together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from efuse.control import Connection
from efuse.errors import ControlError
from efuse.stats import Balance, Channel, ChannelCounters, ChannelRates, MountRates, Sample, rates
from efuse.stats.channels import CHANNEL_COUNTERS, CHANNEL_STATE
from efuse.stats.read import read
from tests.unit.fake_sysfs import FakeSysfs

# Two nodes, whose CPU numbers are not contiguous.
BEFORE = {
    0: Channel(0, 4, counters=ChannelCounters(sent=100, brought=100, poll_hits=50)),
    1: Channel(1, 4, counters=ChannelCounters(sent=10)),
}
AFTER = {
    0: Channel(
        node=0,
        slots=4,
        depth=3,
        in_flight=2,
        service_ns=100_000,
        polling=1,
        counters=ChannelCounters(
            sent=400,
            stolen=60,
            poll_hits=140,
            poll_misses=10,
            spin_hits=30,
            spin_misses=10,
            elsewhere=100,
            brought=340,
        ),
    ),
    1: Channel(1, 4, sleeping=1, counters=ChannelCounters(sent=10)),
    2: Channel(
        node=0,
        slots=4,
        depth=1,
        in_flight=1,
        service_ns=500_000,
        sleeping=1,
        counters=ChannelCounters(sent=100, brought=160),
    ),
}


@pytest.fixture
def sysfs(memory_path: Path) -> FakeSysfs:
    return FakeSysfs(memory_path)


def model() -> MountRates:
    return rates(Sample(41, 0, channels=BEFORE), Sample(41, 2_000_000_000, channels=AFTER))


def row(found: MountRates, *cpus: int) -> ChannelRates:
    """Return the row for these CPUs."""
    return next(r for r in (*found.channels, *found.nodes) if r.group.cpus == cpus)


def test_rates_of_a_cpu_are_differences_per_second() -> None:
    found = row(model(), 0)
    assert (found.group.node, found.group.depth, found.group.in_flight) == (0, 3, 2)
    assert found.per_second == 150
    assert found.stolen_per_second == 30
    assert found.elsewhere_per_second == 50
    assert found.stolen_share == 0.2
    assert found.elsewhere_share == 0.25  # of the 400 that the mount sent
    assert found.poll_hit_ratio == 0.9
    assert found.spin_hit_ratio == 0.75
    # 240 requests of 100 us in 2 s.
    assert found.load == pytest.approx(0.012)


def test_a_cpu_where_nothing_happened_has_no_shares() -> None:
    found = row(model(), 1)
    assert found.per_second == 0
    assert (found.stolen_share, found.poll_hit_ratio, found.spin_hit_ratio) == (None, None, None)
    assert (found.group.service_ns, found.load) == (None, None)


def test_rows_are_in_the_order_of_nodes() -> None:
    found = model()
    assert [r.group.cpus for r in found.channels] == [(0,), (2,), (1,)]
    assert [(r.group.node, r.group.cpus) for r in found.nodes] == [(0, (0, 2)), (1, (1,))]


def test_rates_of_a_node_are_those_of_its_cpus_together() -> None:
    found = row(model(), 0, 2)
    assert (found.group.slots, found.group.depth, found.group.in_flight) == (8, 4, 3)
    assert (found.group.polling, found.group.sleeping) == (1, 1)
    assert found.group.counters == ChannelCounters(
        sent=400,
        stolen=60,
        poll_hits=90,
        poll_misses=10,
        spin_hits=30,
        spin_misses=10,
        elsewhere=100,
        brought=400,
    )
    # 240 requests of 100 us and 160 of 500 us.
    assert found.group.service_ns == pytest.approx(260_000)
    assert found.load == pytest.approx(0.052)
    assert found.stolen_share == 0.15


def test_total_sums_the_channels_of_all_nodes() -> None:
    total = model().channel_total
    assert total is not None
    assert (total.group.node, total.group.cpus) == (None, (0, 1, 2))
    assert (total.per_second, total.elsewhere_share, total.stolen_share) == (200, 0.25, 0.15)


def test_service_time_of_idle_channels_is_their_mean() -> None:
    same = {cpu: Channel(0, 4, service_ns=ns) for cpu, ns in enumerate((0, 2000, 4000))}
    samples = [Sample(41, taken_ns, channels=same) for taken_ns in (0, 1_000_000_000)]
    (node,) = rates(*samples).nodes
    assert (node.group.service_ns, node.load) == (3000, 0)


def test_a_mount_without_channels_has_no_rows() -> None:
    found = rates(Sample(41, 0), Sample(41, 1))
    assert (found.channels, found.nodes, found.channel_total) == ((), (), None)
    assert not found.after.has_channels


@pytest.mark.parametrize(
    ("channel", "has"),
    [
        (Channel(slots=4), True),
        (Channel(depth=1), True),
        (Channel(counters=ChannelCounters(sent=9, stolen=3)), False),
    ],
)
def test_sample_has_channels_if_one_is_made_or_requests_wait(channel: Channel, has: bool) -> None:
    assert Sample(41, 0, channels={0: channel}).has_channels is has


def test_json_has_the_fields_of_the_rates() -> None:
    found = json.loads(json.dumps(model().json()))
    assert found["channels"][0]["group"]["cpus"] == [0]
    assert found["nodes"][0]["load"] == pytest.approx(0.052)
    assert found["channel_total"]["elsewhere_share"] == 0.25
    assert found["after"]["channels"]["2"]["counters"]["brought"] == 160
    assert found["after"]["balance"]["policy"] == "least"


def test_state_and_counters_of_channels_are_read_from_sysfs(sysfs: FakeSysfs) -> None:
    sysfs.add(41, nodes=(0, 0, 1), **{"channels/policy": "own", "channels/threshold": "3"})
    names = (*CHANNEL_STATE, *CHANNEL_COUNTERS)
    numbers = {name: 100 + i for i, name in enumerate(names)}
    sysfs.count_channel(41, 2, **numbers)
    sysfs.count_channel(41, 0, spin_misses=1)
    sample = read(Connection(41, root=sysfs.root))
    assert sample.balance == Balance("own", 3, 1, 50_000)
    assert sample.channels.keys() == {0, 2}, "CPU 1 has no channel, and nothing happened there"
    found = sample.channels[2]
    assert [getattr(found, n) for n in CHANNEL_STATE] == [numbers[n] for n in CHANNEL_STATE]
    of_it = found.counters
    assert [getattr(of_it, n) for n in CHANNEL_COUNTERS] == [numbers[n] for n in CHANNEL_COUNTERS]


def test_channels_are_in_the_order_of_their_numbers(sysfs: FakeSysfs) -> None:
    sysfs.add(41, nodes=(0,) * 12)
    for cpu in range(12):
        sysfs.count_channel(41, cpu, slots=2)
    assert list(read(Connection(41, root=sysfs.root)).channels) == list(range(12))


def test_a_channel_without_a_counter_fails_and_names_it(sysfs: FakeSysfs) -> None:
    sysfs.add(41)
    sysfs.drop_line(41, "channels/1", "stolen")
    with pytest.raises(ControlError, match=r"channels/1 has no number stolen"):
        read(Connection(41, root=sysfs.root))
