# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plain FUSE mounts: their samples, and mounts that come and go."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest

from efuse import stats
from efuse.bpf.requests import Counted
from efuse.control import find, fuse_connections, fuse_waiting, mounts
from efuse.errors import ControlError, NotSupportedError
from efuse.stats import Counters, PlainMounts, Sample, plain_connections, rates
from efuse.stats.latency import BUCKETS, added, bounds_ns, quantile_ns
from tests.unit.fake_configfs import FakeConfigfs
from tests.unit.fake_counters import FakeCounters
from tests.unit.fake_sysfs import FakeSysfs


@pytest.fixture
def sysfs(tmp_path: Path, memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSysfs:
    FakeConfigfs(tmp_path, monkeypatch)
    tree = FakeSysfs(memory_path)
    tree.everywhere(monkeypatch)
    return tree


@pytest.fixture
def counters() -> FakeCounters:
    return FakeCounters()


@pytest.fixture
def plain(sysfs: FakeSysfs, counters: FakeCounters) -> PlainMounts:
    return PlainMounts(lambda: counters)  # type: ignore[arg-type, return-value]


def buckets(**numbers: int) -> tuple[int, ...]:
    return tuple(numbers.get(f"b{bucket}", 0) for bucket in range(BUCKETS))


def test_buckets_are_powers_of_two_without_a_gap() -> None:
    assert bounds_ns(0) == (0, 256)
    assert bounds_ns(1) == (256, 512)
    assert bounds_ns(BUCKETS - 1) == (1 << 34, None)
    for bucket in range(BUCKETS - 1):
        assert bounds_ns(bucket)[1] == bounds_ns(bucket + 1)[0]


def test_a_quantile_lies_in_its_bucket() -> None:
    latency = buckets(b3=90, b10=9, b27=1)
    assert quantile_ns(latency, 0.45) == 1024 + 1024 / 2
    assert quantile_ns(latency, 0.9) == 2048
    assert quantile_ns(latency, 0.99) == 256 << 10
    assert quantile_ns(latency, 1) == 1 << 34
    assert quantile_ns(buckets(), 0.5) is None
    assert quantile_ns((), 0.5) is None


def test_histograms_are_added_where_there_are_some() -> None:
    assert added([buckets(b1=2), (), buckets(b1=1, b2=5)]) == buckets(b1=3, b2=5)
    assert added([]) == ()


def test_counts_of_all_cpus_are_added() -> None:
    first = struct.pack("<32Q", 77, 5, 1, 1 << 40, *range(28))
    second = struct.pack("<32Q", 0, 3, 0, 9, *range(28))
    assert Counted.of([first, second]) == Counted(
        77, 8, 1, (1 << 40) + 9, tuple(2 * bucket for bucket in range(28))
    )


def test_connections_are_numbered_as_the_kernel_does(sysfs: FakeSysfs) -> None:
    lines = ("30 1 0:41 / /mnt/a rw - fuse.sshfs host: rw", "31 1 8:17 / /mnt/b rw - fuseblk x rw")
    sysfs.mountinfo.write_text("\n".join(lines))
    assert [mount.connection for mount in mounts(fuse=True)] == [41, 8 << 20 | 17]


def test_waiting_requests_are_those_of_fusectl(sysfs: FakeSysfs) -> None:
    assert fuse_connections() == ()
    sysfs.add_plain(41, waiting=3)
    assert (fuse_connections(), fuse_waiting(41), fuse_waiting(42)) == ((41,), 3, None)


def test_find_accepts_plain_fuse_only_on_request(sysfs: FakeSysfs) -> None:
    sysfs.add_plain(41, "/mnt/plain")
    assert find("/mnt/plain/a/b", fuse=True).connection == 41
    with pytest.raises(ControlError, match=r"is not on eFuse: it lies on a fuse\.test mount"):
        find("/mnt/plain/a/b")


def test_counting_starts_with_the_first_plain_mount(
    sysfs: FakeSysfs, counters: FakeCounters
) -> None:
    started: list[FakeCounters] = []

    def start() -> FakeCounters:
        started.append(counters)
        return counters

    with PlainMounts(start) as plain:  # type: ignore[arg-type]
        sysfs.add(7, "/mnt/efuse")
        assert (plain.read(), started, plain.seen) == ((), [], False)
        sysfs.add_plain(41, "/mnt/a")
        assert [sample.connection for sample in plain.read()] == [41]
        plain.read()
        assert (started, plain.seen, counters.closed) == ([counters], True, False)
    assert counters.closed


def test_virtiofs_and_second_mounts_are_no_plain_connections(
    sysfs: FakeSysfs, plain: PlainMounts
) -> None:
    sysfs.add_plain(41, "/mnt/a")
    sysfs.add_plain(42)
    with sysfs.mountinfo.open("a") as f:
        f.write("30 1 0:42 / / rw - virtiofs root rw\n")
        f.write("31 1 0:41 / /mnt/again rw - fuse.test source rw\n")
    assert plain_connections() == {41: "/mnt/a"}


def test_a_sample_has_what_was_counted_of_its_connection(
    sysfs: FakeSysfs, plain: PlainMounts, counters: FakeCounters
) -> None:
    sysfs.add_plain(41, "/mnt/a", waiting=2)
    sysfs.add_plain(42)
    plain.read()
    counters.count(41, "lookup", {3: 2, 4: 1}, errors=2, ns=6000)
    counters.count(42, "read", {5: 1}, ns=9000)
    first, second = plain.read()
    assert (first.kind, first.mountpoint, first.waiting) == ("fuse", "/mnt/a", 2)
    assert first.opcodes == {
        "lookup": Counters(requests=3, daemon=3, errors=2, daemon_ns=6000, daemon_timed=3)
    }
    assert first.latency == {"lookup": buckets(b3=2, b4=1)}
    assert (second.mountpoint, second.opcodes.keys()) == ("", {"read"})
    assert [sample.connection for sample in plain.read(42)] == [42]


def test_counts_of_an_ended_mount_are_dropped(
    sysfs: FakeSysfs, plain: PlainMounts, counters: FakeCounters
) -> None:
    sysfs.add_plain(41, "/mnt/a")
    sysfs.add_plain(42, "/mnt/b")
    plain.read()
    counters.count(41, "lookup", {3: 2})
    counters.count(42, "read", {5: 1})
    sysfs.remove_plain(41)
    assert [sample.connection for sample in plain.read()] == [42]
    assert {connection for connection, _ in counters.counts} == {42}


def test_counts_of_a_new_mount_with_a_reused_number_begin_at_zero(
    sysfs: FakeSysfs,
    plain: PlainMounts,
    counters: FakeCounters,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.monotonic_ns", itertools.count(10**9, 10**9).__next__)
    sysfs.add_plain(41, "/mnt/a")
    plain.read()
    counters.count(41, "lookup", {3: 7})
    (before,) = plain.read()
    counters.counts.clear()
    counters.count(41, "init", {9: 1}, first_ns=2_500_000_000)
    counters.count(41, "lookup", {3: 8})
    (after,) = plain.read()
    found = rates(before, after)
    assert {row.opcode: row.counters.requests for row in found.opcodes} == {"init": 1, "lookup": 8}
    assert (after.since_ns, found.interval_ns) == (2_500_000_000, 500_000_000)


def test_rates_of_plain_fuse_have_latencies_and_no_hits() -> None:
    before = Sample(
        41,
        10**9,
        kind="fuse",
        since_ns=5,
        opcodes={"read": Counters(requests=1, daemon=1, errors=1, daemon_ns=500, daemon_timed=1)},
        latency={"read": buckets(b1=1)},
    )
    after = Sample(
        41,
        3 * 10**9,
        kind="fuse",
        since_ns=5,
        opcodes={
            "read": Counters(requests=101, daemon=101, errors=5, daemon_ns=10500, daemon_timed=101),
            "open": Counters(requests=2, daemon=2, daemon_ns=600, daemon_timed=2),
        },
        latency={"read": buckets(b1=91, b3=10), "open": buckets(b0=2)},
    )
    found = rates(before, after)
    opened, read = found.opcodes
    assert (read.per_second, read.errors_per_second, read.daemon_mean_ns) == (50, 2, 100)
    assert (read.latency, read.hit_ratio) == (buckets(b1=90, b3=10), None)
    assert read.p50_ns == 256 + 256 * 50 / 90
    assert read.p99_ns == 1024 + 1024 * 9 / 10
    assert opened.latency == buckets(b0=2)
    assert found.total.latency == buckets(b0=2, b1=90, b3=10)
    assert found.total.hit_ratio is None
    assert after.counted_ns == 3 * 10**9 - 5


def test_without_the_right_to_trace_there_are_mounts_and_a_reason(sysfs: FakeSysfs) -> None:
    tries = []

    def refuse() -> FakeCounters:
        tries.append(1)
        raise NotSupportedError("not here (EPERM)", hint="run as root")

    plain = PlainMounts(refuse)  # type: ignore[arg-type]
    assert (plain.read(), plain.notes) == ((), ())
    sysfs.add_plain(41, "/mnt/a", waiting=4)
    (sample,) = plain.read()
    assert (sample.waiting, sample.since_ns, sample.counted_ns) == (4, None, None)
    assert plain.notes == ("not here (EPERM); try: run as root",)
    plain.read()
    assert tries == [1]


def test_root_without_capabilities_does_not_count(
    sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a container."""
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapEff:\t00000000a80425fb\nCapBnd:\tffff\n")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("efuse.bpf.tracing._STATUS", status)
    sysfs.add_plain(41, "/mnt/a")
    plain = PlainMounts()
    plain.read()
    assert str(plain.problem) == "plain FUSE mounts are not counted: tracing needs root (EPERM)"


def test_user_without_permission_to_trace_does_not_count(
    sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("efuse.bpf.tracing.may_trace", lambda: False)
    sysfs.add_plain(41, "/mnt/a")
    plain = PlainMounts()
    plain.read()
    assert str(plain.problem) == "plain FUSE mounts are not counted: tracing needs root (EPERM)"


def test_missed_requests_are_reported(
    sysfs: FakeSysfs, plain: PlainMounts, counters: FakeCounters
) -> None:
    sysfs.add_plain(41, "/mnt/a")
    plain.read()
    counters.lost = 3
    assert plain.notes == ("3 requests of plain FUSE were missed and are not counted",)


def test_snapshot_with_plain_mounts_needs_no_module(sysfs: FakeSysfs, plain: PlainMounts) -> None:
    (sysfs.root / "connections").rmdir()
    with pytest.raises(ControlError, match="module is not loaded"):
        stats.take(plain=plain)
    sysfs.add_plain(41, "/mnt/a")
    assert [sample.connection for sample in stats.take(plain=plain).mounts] == [41]
    sysfs.remove_plain(41)
    assert stats.take(plain=plain).mounts == ()


def test_a_snapshot_has_mounts_of_both_kinds(sysfs: FakeSysfs, plain: PlainMounts) -> None:
    sysfs.add(50, "/mnt/efuse")
    sysfs.add_plain(41, "/mnt/a")
    found = stats.take(plain=plain)
    assert [(sample.kind, sample.connection) for sample in found.mounts] == [
        ("efuse", 50),
        ("fuse", 41),
    ]
    assert [sample.kind for sample in stats.take().mounts] == ["efuse"]
