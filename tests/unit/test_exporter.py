# SPDX-License-Identifier: LGPL-2.1-or-later
"""Prometheus gets what the files hold, in seconds and bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from efuse import csd
from efuse.errors import EfuseError
from efuse.exporter import Collector, exposition
from efuse.exporter.buckets import BOUNDS_NS, cumulative
from efuse.exporter.metrics import METRICS, Kind, Needs
from efuse.stats import (
    REASONS,
    Channel,
    ChannelCounters,
    Counters,
    DaemonEnd,
    DeviceCounters,
    DeviceSample,
    MapUsage,
    PathCounters,
    PlainMounts,
    Sample,
)
from efuse.stats.paths import LATENCIES
from tests.unit.fake_configfs import FakeConfigfs
from tests.unit.fake_counters import FakeCounters
from tests.unit.fake_sysfs import FakeSysfs

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def configfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeConfigfs:
    return FakeConfigfs(tmp_path, monkeypatch)


@pytest.fixture
def sysfs(memory_path: Path, monkeypatch: pytest.MonkeyPatch, configfs: FakeConfigfs) -> FakeSysfs:
    tree = FakeSysfs(memory_path)
    tree.everywhere(monkeypatch)
    return tree


def scrape(collector: Collector) -> Callable[..., float | None]:
    """Scrape; return a function that returns the value of a series, or None without one."""
    found: Series = {}
    for family in text_string_to_metric_families(exposition(collector).decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"there are two {key}"
            found[key] = sample.value

    def value(name: str, **labels: str) -> float | None:
        return found.get((f"efuse_{name}", frozenset(labels.items())))

    return value


def test_mount_exports_its_state_and_counters(sysfs: FakeSysfs) -> None:
    sysfs.add(
        41, "/mnt/a", exit_info='replace 0 by "another"', waiting="3", map_full="5",
        enable_seq="2", invalid_verdicts="4", recovery="60", daemon="dead", incarnation="3",
        daemon_exit="1700000000 9 5 1 3 2500",
    )  # fmt: skip
    value = scrape(Collector())
    mount = {"connection": "41", "mountpoint": "/mnt/a"}
    told = {"state": "attached", "ops": "efuse", "consistency": "ttl", "daemon": "dead"}
    assert value("mount_info", **mount, **told, exit_info='replace 0 by "another"') == 1
    assert value("recovery_seconds", **mount) == 60
    assert value("successors_total", **mount) == 3
    ends = ("timestamp_seconds", "lost_requests", "resent_requests", "settled_requests")
    ends += ("failed_requests", "gap_seconds")
    found = [value(f"last_end_{name}", **mount) for name in ends]
    assert found == [1700000000, 9, 5, 1, 3, 2.5]
    assert value("waiting_requests", **mount) == 3
    assert value("learned_values_total", **mount) == 12
    assert value("map_full_values_total", **mount) == 5
    assert value("program_sets_attached_total", **mount) == 2
    assert value("invalid_verdicts_total", **mount) == 4
    assert value("up") == 1


def test_requests_are_counted_by_opcode_and_reason(sysfs: FakeSysfs) -> None:
    sysfs.add(41, "/mnt/a")
    sysfs.add(42)
    sysfs.count(41, "lookup", requests=9, hits=4, refused=1, daemon=4, errors=2, stale=3, miss=1)
    sysfs.count(42, "lookup", requests=1)
    value = scrape(Collector())
    lookup = {"connection": "41", "mountpoint": "/mnt/a", "opcode": "lookup"}
    counts = ("requests", "hits", "refused", "daemon_requests", "daemon_errors")
    assert [value(f"{name}_total", **lookup) for name in counts] == [9, 4, 1, 4, 2]
    reasons = {reason: value("passed_total", **lookup, reason=reason) for reason in REASONS}
    assert reasons == dict.fromkeys(REASONS, 0) | {"stale": 3, "miss": 1}
    # An empty label is the same as no label.
    assert value("requests_total", connection="42", mountpoint="", opcode="lookup") == 1
    assert value("requests_total", **lookup | {"opcode": "read"}) is None


def test_times_are_in_seconds(sysfs: FakeSysfs) -> None:
    sysfs.add(41, "/mnt/a")
    sysfs.count(
        41, "read", requests=9, hit_ns=2500, hit_timed=5, daemon_ns=3 * 10**9, daemon_timed=2
    )
    value = scrape(Collector(times=True))
    read = {"connection": "41", "mountpoint": "/mnt/a", "opcode": "read"}
    assert value("hit_duration_seconds_sum", **read) == pytest.approx(2.5e-6)
    assert value("hit_duration_seconds_count", **read) == 5
    assert value("daemon_duration_seconds_sum", **read) == 3
    assert value("daemon_duration_seconds_count", **read) == 2


def test_paths_are_exported_as_counts_bytes_and_a_histogram(sysfs: FakeSysfs) -> None:
    sysfs.add(41, "/mnt/a")
    sysfs.count_path(
        41, "direct", latency={0: 1, 1: 2, 4: 3, 5: 4, 105: 5}, chosen=20, requests=15, partial=2,
        bytes=4096, ns=4 * 10**9, timed=15, probes=1, predicted=9, predicted_ns=10**9,
        actual_ns=2 * 10**9, error_ns=5 * 10**8,
    )  # fmt: skip
    value = scrape(Collector(times=True))
    path = {"connection": "41", "mountpoint": "/mnt/a", "path": "direct"}
    wanted = {
        "chosen": 20, "requests": 15, "partial": 2, "bytes": 4096, "probes": 1,
        "predicted_requests": 9, "predicted_seconds": 1, "actual_seconds": 2,
        "prediction_error_seconds": 0.5,
    }  # fmt: skip
    assert {name: value(f"path_{name}_total", **path) for name in wanted} == wanted
    assert value("path_duration_seconds_sum", **path) == 4
    assert value("path_duration_seconds_count", **path) == 15
    for bound, count in (("2.56e-07", 1), ("5.12e-07", 6), ("1.024e-06", 10), ("+Inf", 15)):
        assert value("path_duration_seconds_bucket", **path, le=bound) == count
    assert value("path_duration_seconds_bucket", **path, le="17.179869184") == 10
    assert value("path_requests_total", **path | {"path": "cache"}) == 0


def test_four_latency_classes_make_one_bucket() -> None:
    # The kernel's classes begin where PathCounters says; here each has one request.
    counts = cumulative([1] * LATENCIES)
    assert counts == [*range(1, LATENCIES, 4), LATENCIES]
    assert len(counts) == len(BOUNDS_NS) + 1
    assert (BOUNDS_NS[0], BOUNDS_NS[-1]) == (256, 1 << 34)
    for bound, below in zip(BOUNDS_NS, counts, strict=False):
        latency = tuple(int(index < below) for index in range(LATENCIES))
        assert PathCounters(latency=latency).quantile_ns(1) == bound


def test_collector_without_times_watches_no_times(
    sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sysfs.add(41, "/mnt/a")
    sysfs.count(41, "lookup", requests=9, hit_ns=70, hit_timed=1)
    (path / "watch_times").unlink()
    value = scrape(Collector())
    lookup = {"connection": "41", "mountpoint": "/mnt/a", "opcode": "lookup"}
    assert value("up") == 1
    assert value("requests_total", **lookup) == 9
    assert value("hit_duration_seconds_count", **lookup) is None
    direct = {"connection": "41", "mountpoint": "/mnt/a", "path": "direct"}
    assert value("path_duration_seconds_count", **direct) is None


def test_channels_are_told_apart_by_cpu_and_node(sysfs: FakeSysfs) -> None:
    sysfs.add(41, "/mnt/a", nodes=(0, 1))
    sysfs.count_channel(
        41, 1, node=1, slots=4, depth=2, in_flight=3, service_ns=9000, polling=1, sleeping=2,
        sent=60, stolen=6, poll_hits=9, poll_misses=1, spin_hits=7, spin_misses=8, elsewhere=5,
        others_woken=10, brought=54, refused=11,
    )  # fmt: skip
    value = scrape(Collector())
    channel = {"connection": "41", "mountpoint": "/mnt/a", "cpu": "1", "node": "1"}
    now = {"slots": 4, "depth": 2, "in_flight": 3, "polling": 1, "sleeping": 2}
    assert {name: value(f"channel_{name}", **channel) for name in now} == now
    assert value("channel_service_seconds", **channel) == pytest.approx(9e-6)
    counted = {
        "sent": 60, "stolen": 6, "poll_hits": 9, "poll_misses": 1, "spin_hits": 7,
        "spin_misses": 8, "elsewhere": 5, "others_woken": 10, "brought": 54, "refused": 11,
    }  # fmt: skip
    assert {name: value(f"channel_{name}_total", **channel) for name in counted} == counted
    assert value("channel_slots", **channel | {"cpu": "0", "node": "0"}) is None


def test_maps_are_counted_only_on_request(
    sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs.add(41, "/mnt/a")
    monkeypatch.setattr("efuse.stats.maps.usage", lambda number: (MapUsage("attrs", number, 99),))
    labels = {"connection": "41", "mountpoint": "/mnt/a", "map": "attrs"}
    value = scrape(Collector(maps=True))
    assert (value("map_entries", **labels), value("map_max_entries", **labels)) == (41, 99)
    assert scrape(Collector())("map_entries", **labels) is None


def test_devices_are_exported_as_bytes_seconds_and_batches(
    sysfs: FakeSysfs, configfs: FakeConfigfs
) -> None:
    csd.create("one", {"cores": 2})
    csd.create("off", {"power": 0})
    configfs.busy["one"] = ["/mnt/b", "/mnt/c", "/mnt/b"]
    configfs.count(
        "one", link_read_bytes=1, link_write_bytes=2, media_read_bytes=3, media_write_bytes=4,
        core_busy_ns=5 * 10**9, reads=6, writes=7, commands=8, chosen_device=9, chosen_kernel=10,
        chosen_policy=11, predicted_ns=12 * 10**9, actual_ns=13 * 10**9, error_ns=14 * 10**9,
    )  # fmt: skip
    value = scrape(Collector())
    assert value("device_info", device="one", disk="/dev/csd0") == 1
    assert value("device_mount_info", device="one", mountpoint="/mnt/b") == 1
    assert value("device_mount_info", device="one", mountpoint="/mnt/c") == 1
    assert value("device_cores", device="one") == 2
    assert value("device_cores", device="off") is None
    counted = {
        "link_read_bytes": 1, "link_write_bytes": 2, "media_read_bytes": 3,
        "media_write_bytes": 4, "core_busy_seconds": 5, "reads": 6, "writes": 7, "commands": 8,
        "policy_batches": 11, "predicted_seconds": 12, "actual_seconds": 13,
        "prediction_error_seconds": 14,
    }  # fmt: skip
    assert {name: value(f"device_{name}_total", device="one") for name in counted} == counted
    assert value("device_batches_total", device="one", place="device") == 9
    assert value("device_batches_total", device="one", place="kernel") == 10


@pytest.fixture
def counters(sysfs: FakeSysfs) -> FakeCounters:
    sysfs.add(41, "/mnt/a")
    sysfs.add_plain(62, "/mnt/plain", waiting=3)
    return FakeCounters()


def test_plain_mounts_are_exported_as_counts_and_a_histogram(counters: FakeCounters) -> None:
    mount = {"connection": "62", "mountpoint": "/mnt/plain"}
    assert scrape(Collector())("plain_waiting_requests", **mount) is None
    with PlainMounts(lambda: counters) as plain:  # type: ignore[arg-type, return-value]
        plain.start()
        counters.count(62, "read", {0: 1, 1: 2, 10: 3, 27: 4}, errors=5, ns=3 * 10**9)
        counters.lost = 6
        value = scrape(Collector(plain=plain))
    assert value("plain_up") == 1
    assert value("plain_missed_requests_total") == 6
    assert value("plain_waiting_requests", **mount) == 3
    read = {**mount, "opcode": "read"}
    assert value("plain_requests_total", **read) == 10
    assert value("plain_errors_total", **read) == 5
    assert value("plain_duration_seconds_sum", **read) == 3
    assert value("plain_duration_seconds_count", **read) == 10
    for bound, count in (("2.56e-07", 1), ("5.12e-07", 3), ("0.000262144", 6), ("+Inf", 10)):
        assert value("plain_duration_seconds_bucket", **read, le=bound) == count
    assert value("plain_duration_seconds_bucket", **read, le="17.179869184") == 6
    # The series of eFuse do not change, and do not include plain FUSE.
    assert value("waiting_requests", connection="41", mountpoint="/mnt/a") == 0
    assert value("waiting_requests", **mount) is None


def test_uncounted_plain_mounts_are_reported(counters: FakeCounters, sysfs: FakeSysfs) -> None:
    def refuse() -> FakeCounters:
        raise EfuseError("tracing needs root (EPERM)")

    sysfs.add_plain(63)
    (sysfs.fusectl / "63" / "waiting").unlink()
    output: list[str] = []
    value = scrape(Collector(plain=PlainMounts(refuse), warn=output.append))  # type: ignore[arg-type]
    assert output == ["tracing needs root (EPERM)"]
    assert (value("plain_up"), value("up")) == (0, 1)
    assert value("plain_waiting_requests", connection="62", mountpoint="/mnt/plain") == 3
    assert value("plain_waiting_requests", connection="63", mountpoint="") is None


def test_plain_mounts_that_cannot_be_read_leave_the_rest_of_the_scrape(
    counters: FakeCounters, sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> dict[tuple[int, int], object]:
        raise EfuseError("cannot read map 'counts' (ENOMEM)")

    output: list[str] = []
    plain = PlainMounts(lambda: counters)  # type: ignore[arg-type, return-value]
    plain.start()
    monkeypatch.setattr(counters, "read", refuse)
    value = scrape(Collector(plain=plain, warn=output.append))
    assert output == ["cannot read map 'counts' (ENOMEM)"]
    assert (value("plain_up"), value("up")) == (0, 1)
    assert value("waiting_requests", connection="41", mountpoint="/mnt/a") == 0


def test_module_that_is_loaded_later_is_noticed(sysfs: FakeSysfs, configfs: FakeConfigfs) -> None:
    output: list[str] = []
    collector = Collector(warn=output.append)
    csd.create("one", {})
    (sysfs.root / "connections").rmdir()
    value = scrape(collector)
    assert (value("up"), value("device_cores", device="one")) == (0, 1)
    (problem,) = output
    assert problem.startswith("the eFuse module is not loaded")
    sysfs.add(41, "/mnt/a")
    value = scrape(collector)
    assert value("up") == 1
    assert value("waiting_requests", connection="41", mountpoint="/mnt/a") == 0
    assert len(output) == 1


def test_unreadable_maps_are_reported_and_the_rest_is_exported(
    sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(connection: int) -> tuple[MapUsage, ...]:
        raise EfuseError("the kernel shows no maps (EPERM)")

    sysfs.add(41, "/mnt/a")
    monkeypatch.setattr("efuse.stats.maps.usage", refuse)
    output: list[str] = []
    value = scrape(Collector(maps=True, warn=output.append))
    assert output == ["the kernel shows no maps (EPERM)"]
    assert value("up") == 0
    assert value("waiting_requests", connection="41", mountpoint="/mnt/a") == 0


def test_mount_that_ends_while_its_maps_are_counted_is_left_out(
    sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sysfs.add(41, "/mnt/a")

    def unmount(connection: int) -> tuple[MapUsage, ...]:
        path.rename(sysfs.root / "gone")
        raise EfuseError("there is no such connection")

    monkeypatch.setattr("efuse.stats.maps.usage", unmount)
    assert scrape(Collector(maps=True))("up") == 1


def test_names_that_are_no_utf8_are_escaped(sysfs: FakeSysfs) -> None:
    sysfs.add(41)
    line = b'141 1 0:41 / /mnt/\xff"\xc3\xa4 rw - efuse.test source rw\n'
    sysfs.mountinfo.write_bytes(line)
    value = scrape(Collector())
    assert value("waiting_requests", connection="41", mountpoint='/mnt/\\xff"ä') == 0


def test_every_field_of_the_samples_is_exported() -> None:
    told = {
        field
        for metric in METRICS
        if metric.needs is not Needs.PLAIN and not metric.name.startswith("efuse_service_")
        for field in metric.fields.values()
    }
    plain = (Counters, PathCounters, Channel, MapUsage, DeviceSample, Sample)
    there = {field.name for each in plain for field in fields(each)}
    nested = (ChannelCounters, DeviceCounters)
    there |= {f"counters.{field.name}" for each in nested for field in fields(each)}
    there |= {f"last_end.{field.name}" for field in fields(DaemonEnd)}
    # Left out: what identifies a sample, how it was read, what contains other samples, settings,
    # and a histogram's count.
    apart = {"connection", "mountpoint", "node", "name", "mounts", "taken_ns", "timing"}
    apart |= {"kind", "since_ns"}
    holding = {"opcodes", "paths", "channels", "maps", "counters", "last_end"}
    assert told - {"up"} == there - apart - holding - {"balance", "timed"}


def test_names_are_as_prometheus_wants_them() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("efuse_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.name.endswith("_info") == (metric.kind is Kind.INFO)
        assert not metric.name.endswith(("_sum", "_count", "_bucket"))
        assert "_ns" not in metric.name
        assert metric.doc[0].isupper() or metric.doc[0].isdigit()
        assert not metric.doc.endswith(".")


def test_the_families_are_those_of_the_catalog() -> None:
    everything = Collector(times=True, maps=True, plain=PlainMounts())
    described = {family.name for family in everything.describe()}
    assert described == {m.name.removesuffix("_total").removesuffix("_info") for m in METRICS}
    always = {family.name for family in Collector().describe()}
    assert len(described - always) == sum(m.needs is not Needs.NOTHING for m in METRICS)
