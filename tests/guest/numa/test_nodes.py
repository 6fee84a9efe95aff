# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test channels on a machine with two NUMA nodes: CPUs 0 and 1, and CPUs 2 and 3."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.guest.support import wire
from tests.guest.support.channel import Channel
from tests.guest.support.manual_daemon import DEADLINE_S, ManualDaemon, root_attributes

CPUS = (0, 1, 2, 3)
NODE = {0: 0, 1: 0, 2: 1, 3: 1}
SLOTS = 4


@pytest.fixture
def manual_daemon(mountpoint: Path) -> Iterator[ManualDaemon]:
    made = ManualDaemon(mountpoint, CPUS)
    made.connection.spin_ns = 0
    yield made
    made.close()


@pytest.fixture
def channels(manual_daemon: ManualDaemon) -> Iterator[list[Channel]]:
    """Yield a channel for each CPU."""
    made = [Channel(manual_daemon.fd, cpu, SLOTS) for cpu in CPUS]
    yield made
    for each in made:
        each.close()


def depths(manual_daemon: ManualDaemon) -> list[int]:
    return [manual_daemon.channel(cpu, "depth") for cpu in CPUS]


def serve(channel: Channel, sizes: list[Future[int]]) -> None:
    for number in range(len(sizes)):
        message = channel.next()
        raw = wire.reply(message.request.unique, 0, root_attributes(number))
        channel.reply(message.slot, channel.put(message.slot, raw))
    assert sorted(size.result(DEADLINE_S) for size in sizes) == list(range(len(sizes)))


def test_guest_has_two_nodes() -> None:
    for cpu, node in NODE.items():
        assert Path(f"/sys/devices/system/cpu/cpu{cpu}/node{node}").exists()


def test_sysfs_shows_the_node_of_each_channel(manual_daemon: ManualDaemon) -> None:
    assert {cpu: manual_daemon.channel(cpu, "node") for cpu in CPUS} == NODE


def test_slots_are_in_memory_of_the_node_of_the_cpu(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    """numa_maps shows the nodes of the pages, which do not depend on the CPU of the creating
    thread."""
    os.sched_setaffinity(0, {0})
    pages = 2 * SLOTS * channels[0].slot_size // os.sysconf("SC_PAGE_SIZE")
    for channel in channels:
        assert channel.memory[:].count(0) == len(channel.memory)  # This touches each page.
    found = re.findall(r"file=/dev/efuse.*", Path("/proc/self/numa_maps").read_text())
    nodes = [dict(re.findall(r"N(\d+)=(\d+)", line)) for line in found]
    assert sorted(map(str, nodes)) == sorted(str({str(NODE[cpu]): str(pages)}) for cpu in CPUS)


@pytest.mark.parametrize(
    ("first", "second", "far"), [(0, 1, (2, 3)), (1, 0, (2, 3)), (3, 2, (0, 1))]
)
def test_loaded_channel_shares_requests_with_its_node_first(
    manual_daemon: ManualDaemon,
    channels: list[Channel],
    first: int,
    second: int,
    far: tuple[int, int],
) -> None:
    sizes = [manual_daemon.ask(first)]
    assert [cpu for cpu in CPUS if depths(manual_daemon)[cpu]] == [first]
    sizes.append(manual_daemon.ask(first))
    assert [cpu for cpu in CPUS if depths(manual_daemon)[cpu]] == sorted((first, second))
    sizes.append(manual_daemon.ask(first))  # Both channels of the node are loaded now.
    assert sum(depths(manual_daemon)[cpu] for cpu in far) == 1
    sizes.append(manual_daemon.ask(first))
    assert depths(manual_daemon) == [1, 1, 1, 1]
    assert manual_daemon.channel(first, "elsewhere") == 3
    serve(channels[0], sizes)


def test_channels_of_the_node_are_filled_to_the_threshold_first(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    manual_daemon.connection.threshold = 2
    sizes = [manual_daemon.ask(2) for _ in range(4)]
    assert depths(manual_daemon) == [0, 0, 2, 2]
    sizes.append(manual_daemon.ask(2))
    assert sum(depths(manual_daemon)[:2]) == 1
    serve(channels[1], sizes)


@pytest.mark.parametrize(
    ("made", "homes"),
    [
        ((3,), {0: 3, 1: 3, 2: 3, 3: 3}),
        ((1, 2), {0: 1, 1: 1, 2: 2, 3: 2}),
        ((0, 3), {0: 0, 1: 0, 2: 3, 3: 3}),
    ],
)
def test_cpu_without_a_channel_sends_to_one_on_its_node(
    manual_daemon: ManualDaemon, made: tuple[int, ...], homes: dict[int, int]
) -> None:
    manual_daemon.connection.policy = "own"
    some = [Channel(manual_daemon.fd, cpu, SLOTS) for cpu in made]
    sizes = []
    for cpu, home in homes.items():
        before = depths(manual_daemon)
        sizes.append(manual_daemon.ask(cpu))
        gained = [now - then for now, then in zip(depths(manual_daemon), before, strict=True)]
        assert gained == [int(other == home) for other in CPUS]
    manual_daemon.connection.policy = "least"
    serve(some[0], sizes)
    for channel in some:
        channel.close()


def test_reader_prefers_requests_of_its_node(manual_daemon: ManualDaemon) -> None:
    sizes = [manual_daemon.ask(cpu) for cpu in (0, 3)]
    for number, cpu in enumerate((2, 1)):  # The other CPU of each node.
        manual_daemon.answer(manual_daemon.read(cpu), number)
    assert [size.result(DEADLINE_S) for size in sizes] == [1, 0]
