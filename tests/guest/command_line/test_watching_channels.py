# SPDX-License-Identifier: LGPL-2.1-or-later
"""The channels that ``efuse stat`` and ``efuse top`` show are the same as in sysfs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse.bench.programs import built
from efuse.control import Connection, find
from tests.conftest import Eventually
from tests.guest.support import wire
from tests.guest.support.channel import Channel
from tests.guest.support.forked import efuse
from tests.guest.support.manual_daemon import DEADLINE_S, ManualDaemon, root_attributes

STATE = ("node", "slots", "depth", "in_flight", "service_ns", "polling", "sleeping")
COUNTERS = (
    *("sent", "stolen", "poll_hits", "poll_misses", "spin_hits", "spin_misses"),
    *("elsewhere", "others_woken", "brought", "refused"),
)

Numbers = dict[int, dict[str, int]]


def numbers(connection: Connection) -> Numbers:
    """Return the values of all channels in sysfs, by CPU."""
    return {cpu: connection.counts(f"channels/{cpu}") for cpu in connection.cpus()}


def rows(text: str) -> dict[str, list[str]]:
    """Return the rows of the table of channels by CPU, split into words. A time is one word."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("NODE"))
    names = lines[start].split()
    found = {}
    for line in lines[start + 1 :]:
        words = line.replace(" ns", "_ns").replace(" us", "_us").replace(" ms", "_ms").split()
        if len(words) != len(names):
            break
        found[words[1]] = words
    return found


@pytest.fixture
def connection(tmp_path: Path, mountpoint: Path) -> Iterator[Connection]:
    """Yield the connection of an unmodified libfuse daemon with a channel for each CPU.

    The kernel answers nothing. The daemon has served requests of each CPU.
    """
    source = tmp_path / "source"
    source.mkdir()
    daemon = [str(built("passthrough_ll")), "-o", f"source={source},timeout=0", str(mountpoint)]
    efuse("run", "--require", "--consistency", "strict", "--", *daemon)
    affinity = os.sched_getaffinity(0)
    try:
        made = Connection(find(mountpoint).connection)
        for policy in ("own", "least"):
            made.policy = policy
            for cpu in (0, 1):
                os.sched_setaffinity(0, {cpu})
                for _ in range(50):
                    assert not (mountpoint / "absent").exists()
        os.sched_setaffinity(0, affinity)
        yield made
    finally:
        os.sched_setaffinity(0, affinity)
        subprocess.run(["umount", mountpoint], check=True)


@pytest.fixture
def manual_daemon(mountpoint: Path) -> Iterator[ManualDaemon]:
    """Yield a mount whose requests the test answers."""
    made = ManualDaemon(mountpoint)
    made.connection.spin_ns = 0
    made.connection.consistency = "strict"
    yield made
    made.close()


def sent(every: Numbers) -> int:
    return sum(channel["sent"] for channel in every.values())


def at_rest(connection: Connection, eventually: Eventually) -> Numbers:
    """Wait until every worker sleeps, and return the channels' values at that time."""

    def is_at_rest() -> bool:
        every = numbers(connection).values()
        return all(c["sleeping"] and not c["depth"] and not c["in_flight"] for c in every)

    eventually(is_at_rest, what="the workers to sleep")
    return numbers(connection)


def check_json(mount: dict[str, Any], expected: Numbers) -> None:
    assert {int(cpu) for cpu in mount["channels"]} == set(expected)
    for cpu, values in expected.items():
        found = mount["channels"][str(cpu)]
        assert {name: found[name] for name in STATE} == {n: values[n] for n in STATE}
        assert found["counters"] == {name: values[name] for name in COUNTERS}


def share(part: int, other: int) -> float | None:
    return 100 * part / (part + other) if part + other else None


def check_share(word: str, expected: float | None) -> None:
    if expected is None:
        assert word == "-"
    else:
        assert float(word.strip("<%")) == pytest.approx(expected, abs=0.1)


def check_table(text: str, expected: Numbers) -> None:
    found = rows(text)
    assert found.keys() == {*map(str, expected), "0-1"}
    for cpu, v in expected.items():
        row = found[str(cpu)]
        now = [v[name] for name in ("node", "slots", "depth", "in_flight")]
        assert [row[0], *row[2:5]] == [str(n) for n in now]
        assert row[6:8] == [str(v["polling"]), str(v["sleeping"])]
        check_share(row[8], share(v["poll_hits"], v["poll_misses"]))
        check_share(row[9], share(v["spin_hits"], v["spin_misses"]))
        counted = ("sent", "stolen", "elsewhere", "others_woken", "brought", "refused")
        assert row[10:] == [str(v[name]) for name in counted]
        assert found["0-1"][10:] == [str(sum(e[n] for e in expected.values())) for n in counted]


def test_stat_shows_the_channel_counters_of_sysfs(
    connection: Connection, eventually: Eventually
) -> None:
    expected = at_rest(connection, eventually)
    assert expected.keys() == {0, 1}
    for channel in expected.values():
        assert channel["slots"], "the daemon has made no channels"
        assert channel["service_ns"], "nothing went through the channel"
    assert sum(c["brought"] for c in expected.values()) >= 200
    text = efuse("stat", str(connection.id))
    check_json(json.loads(efuse("stat", str(connection.id), "--json"))["mounts"][0], expected)
    check_table(text, expected)
    assert numbers(connection) == expected, "something happened meanwhile"


def test_stat_and_top_show_how_requests_are_sent(connection: Connection) -> None:
    connection.policy = "own"
    connection.threshold = 17
    connection.spread = 0
    connection.spin_ns = 3000
    line = "policy own  threshold 17  spread 0  spin 3.0 us"
    assert line in efuse("stat", str(connection.id)).splitlines()
    assert line in efuse("top", "--once", "--interval", "0.1")
    (mount,) = json.loads(efuse("stat", str(connection.id), "--json"))["mounts"]
    assert mount["balance"] == {
        "policy": "own",
        "threshold": 17,
        "spread": 0,
        "spin_ns": 3000,
    }


def test_stat_shows_where_requests_wait_and_were_sent(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    """Six requests come from one CPU. The balancer spreads them, and one is at the daemon."""
    sizes = [manual_daemon.ask(0) for _ in range(6)]
    message = channels[0].next()
    expected = numbers(manual_daemon.connection)
    assert [expected[cpu]["depth"] for cpu in (0, 1)] == [2, 3]
    assert [expected[cpu]["in_flight"] for cpu in (0, 1)] == [1, 0]
    assert [expected[cpu]["elsewhere"] for cpu in (0, 1)] == [3, 0]
    text = efuse("stat", str(manual_daemon.connection.id))
    check_table(text, expected)
    assert rows(text)["0-1"][3:5] == ["5", "1"]
    for number in range(6):
        if number:
            message = channels[0].next()
        raw = wire.reply(message.request.unique, 0, root_attributes(1))
        channels[0].reply(message.slot, channels[0].put(message.slot, raw))
    assert [size.result(DEADLINE_S) for size in sizes] == [1] * 6


def test_top_shows_the_changes_between_two_samples(
    connection: Connection, mountpoint: Path, eventually: Eventually
) -> None:
    before = at_rest(connection, eventually)
    code = (
        "import os, sys\n"
        "os.sched_setaffinity(0, {1})\n"
        "while 1: os.path.exists(sys.argv[1] + '/absent')"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(mountpoint)]) as load:
        try:
            eventually(lambda: sent(numbers(connection)) > sent(before))
            (mount,) = json.loads(efuse("top", "--once", "--json", "--interval", "2"))["mounts"]
            text = efuse("top", "--once", "--interval", "0.5")
        finally:
            load.kill()
    after = at_rest(connection, eventually)
    seconds = mount["interval_ns"] / 1e9
    by_cpu = {row["group"]["cpus"][0]: row for row in mount["channels"]}
    assert by_cpu.keys() == {0, 1}
    for cpu, row in by_cpu.items():
        counters = row["group"]["counters"]
        for name in COUNTERS:
            assert 0 <= counters[name] <= after[cpu][name] - before[cpu][name], (cpu, name)
        assert row["group"]["node"] == after[cpu]["node"]
        assert row["per_second"] == pytest.approx(counters["sent"] / seconds)
        assert row["elsewhere_per_second"] == pytest.approx(counters["elsewhere"] / seconds)
        assert row["stolen_per_second"] == pytest.approx(counters["stolen"] / seconds)
    total = mount["channel_total"]
    assert total["group"]["counters"]["sent"] > 0
    assert total["group"]["counters"]["brought"] > 0
    # These are of a running load: both are read in one sample, but not at the same moment.
    assert total["per_second"] == pytest.approx(mount["total"]["daemon_per_second"], rel=0.5)
    assert [node["group"]["cpus"] for node in mount["nodes"]] == [[0, 1]]
    shown = rows(text)
    assert shown.keys() == {"0", "1"}
    assert any(row[2] != "0" for row in shown.values()), "no rate is shown"
