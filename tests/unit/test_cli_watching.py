# SPDX-License-Identifier: LGPL-2.1-or-later
import itertools
import json
import os
from pathlib import Path

import pytest

from efuse import csd
from efuse.cli import ctl as ctl_command
from efuse.cli.main import main
from efuse.stats import MapUsage
from efuse.stats.devices import DEVICE_COUNTERS
from tests.unit.fake_configfs import FakeConfigfs
from tests.unit.fake_counters import FakeCounters
from tests.unit.fake_sysfs import FakeSysfs


@pytest.fixture
def configfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeConfigfs:
    return FakeConfigfs(tmp_path, monkeypatch)


@pytest.fixture
def sysfs(memory_path: Path, monkeypatch: pytest.MonkeyPatch, configfs: FakeConfigfs) -> FakeSysfs:
    tree = FakeSysfs(memory_path)
    tree.everywhere(monkeypatch)
    monkeypatch.setattr(
        "efuse.stats.maps.usage", lambda connection: (MapUsage("entries", connection, 100),)
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("NO_COLOR", "1")
    return tree


def efuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def test_stat_lists_the_mounts(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    sysfs.add(41, "/mnt/a")
    sysfs.count(41, "lookup", requests=4, hits=3, daemon=1)
    sysfs.count(41, "open", requests=1, daemon=1)
    code, out, _ = efuse(capsys, "stat")
    assert code == 0
    row = ["41", "efuse", "/mnt/a", "efuse", "ttl", "5", "60.0%", "2"]
    assert out.splitlines()[1].split() == row


def test_stat_of_a_mount_shows_its_opcodes(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    sysfs.add(41, "/mnt/a", exit_info="replace 0 by another")
    sysfs.count(41, "lookup", requests=4, hits=3, daemon=1, stale=1)
    code, out, _ = efuse(capsys, "stat", "/mnt/a/file")
    assert code == 0
    assert "EXIT: replace 0 by another" in out.splitlines()
    row = next(line for line in out.splitlines() if line.startswith("lookup"))
    assert row.split() == ["lookup", "4", "3", "75.0%", "0", "1", "0", "stale", "1"]


def test_stat_of_a_mount_shows_its_daemon(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_ = "1700000000 9 5 1 3 250"
    sysfs.add(41, "/mnt/a", recovery="60", daemon="dead", incarnation="3", daemon_exit=exit_)
    sysfs.add(42, "/mnt/b", recovery="60")
    sysfs.add(43, "/mnt/c")
    _, out, _ = efuse(capsys, "stat", "/mnt/a")
    lines = out.splitlines()
    assert lines[0].split("  learned")[0].endswith("0 waiting  daemon dead")
    assert lines[2] == (
        "daemon: dead  successors 3  recovery 60 s  last end: 9 lost, 5 sent again, 1 settled,"
        " 3 failed, 250 ms without a daemon"
    )
    _, out, _ = efuse(capsys, "stat", "/mnt/b")
    assert out.splitlines()[2] == "daemon: serving  successors 0  recovery 60 s"
    _, out, _ = efuse(capsys, "stat", "/mnt/c")
    assert "daemon: " not in out


def test_stat_json_has_the_counters_of_the_sample(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    sysfs.add(41, "/mnt/a")
    sysfs.count(41, "lookup", requests=4, hits=3, daemon=1, miss=1)
    code, out, _ = efuse(capsys, "stat", "41", "--json")
    assert code == 0
    (mount,) = json.loads(out)["mounts"]
    assert mount["mountpoint"] == "/mnt/a"
    assert mount["opcodes"].keys() == {"lookup"}
    assert mount["opcodes"]["lookup"]["miss"] == 1


def table(out: str, first: str) -> list[str]:
    """Return a table's lines with single spaces, from the one that begins with *first* on."""
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == [first])
    end = next((i for i in range(start, len(lines)) if not lines[i].strip()), len(lines))
    return [" ".join(line.split()) for line in lines[start:end]]


def test_stat_of_a_mount_shows_its_channels(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    sysfs.add(41, "/mnt/a", nodes=(0, 1), **{"channels/policy": "own", "channels/spin_ns": "0"})
    sysfs.count_channel(
        41, 0, slots=4, depth=2, in_flight=1, service_ns=9000, sleeping=1, sent=60, stolen=6,
        poll_hits=9, poll_misses=1, others_woken=5, brought=54, refused=3,
    )  # fmt: skip
    sysfs.count_channel(
        41, 1, node=1, slots=4, polling=1, sent=40, elsewhere=7, spin_hits=1, brought=46
    )
    code, out, _ = efuse(capsys, "stat", "41")
    assert code == 0
    assert "policy own  threshold 1  spread 1  spin 0 ns" in out.splitlines()
    assert table(out, "NODE") == [
        "NODE CPU SLOTS DEPTH FLIGHT SERVICE POLLING SLEEP POLL SPIN SENT STOLEN ELSEWHERE WOKEN "
        "BROUGHT REFUSED",
        "0 0 4 2 1 9.0 us 0 1 90.0% - 60 6 0 5 54 3",
        "1 1 4 0 0 - 1 0 - 100% 40 0 7 0 46 0",
        "total 0-1 8 2 1 9.0 us 1 1 90.0% 100% 100 6 7 5 100 3",
    ]


def test_stat_of_many_cpus_has_a_row_a_node(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    sysfs.add(41, "/mnt/a", nodes=[cpu % 2 for cpu in range(18)])
    for cpu in range(18):
        sysfs.count_channel(41, cpu, node=cpu % 2, slots=1)
    _, out, _ = efuse(capsys, "stat", "41")
    found = [row.split()[:3] for row in table(out, "NODE")[1:]]
    odd = ",".join(str(cpu) for cpu in range(1, 18, 2))
    even = ",".join(str(cpu) for cpu in range(0, 18, 2))
    assert found == [["0", even, "9"], ["1", odd, "9"], ["total", "0-17", "18"]]


def test_stat_of_a_daemon_without_channels_has_no_table_of_them(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    sysfs.add(41, "/mnt/a")
    sysfs.count_channel(41, 0, sent=100, stolen=50)
    _, out, _ = efuse(capsys, "stat", "41")
    assert "NODE" not in out
    _, out, _ = efuse(capsys, "stat", "41", "--json")
    (mount,) = json.loads(out)["mounts"]
    assert mount["channels"]["0"]["counters"]["stolen"] == 50


def test_stat_without_mounts_prints_a_message(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert efuse(capsys, "stat") == (0, "no FUSE file system is mounted\n", "")


def test_stat_of_a_path_outside_fuse_fails(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = efuse(capsys, "stat", "/")
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == (
        "efuse: / is not on FUSE: it lies on no mount that is visible here"
    )
    assert err.splitlines()[1].startswith("try: ")


def test_stat_with_an_interval_prints_rates(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs.add(41, "/mnt/a")
    rounds = iter(range(1, 4))

    def pause(seconds: float) -> None:
        n = next(rounds)
        sysfs.count(41, "lookup", requests=100 * n, hits=90 * n, daemon=10 * n)

    monkeypatch.setattr("efuse.cli.stat.pause", pause)
    code, out, _ = efuse(capsys, "stat", "--interval", "0.1", "--count", "3", "--json")
    assert code == 0
    lines = [json.loads(line)["mounts"][0] for line in out.splitlines()]
    assert [m["opcodes"][0]["counters"]["hits"] for m in lines] == [90, 90, 90]
    assert [m["opcodes"][0]["hit_ratio"] for m in lines] == [0.9, 0.9, 0.9]


@pytest.fixture
def busy(sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch) -> FakeSysfs:
    """A mount that gets LOOKUPs while a command waits; the third wait is interrupted."""
    sysfs.add(41, "/mnt/a")
    sysfs.count(41, "lookup", requests=1, hits=1)
    rounds = iter(range(2, 4))

    def pause(seconds: float) -> None:
        n = next(rounds, None)
        if n is None:
            raise KeyboardInterrupt
        sysfs.count(41, "lookup", requests=100 * n, hits=90 * n, daemon=10 * n)

    monkeypatch.setattr("efuse.cli.stat.pause", pause)
    return sysfs


@pytest.mark.parametrize("watch", [("--watch",), ("--watch", "0.1"), ("--watch=3",)])
def test_stat_is_printed_again_until_an_interrupt(
    busy: FakeSysfs, capsys: pytest.CaptureFixture[str], watch: tuple[str, ...]
) -> None:
    code, out, err = efuse(capsys, "stat", *watch)
    assert (code, err) == (0, "")
    blocks = out.split("\n\n")
    assert [block.splitlines()[1].split()[5] for block in blocks] == ["1", "200", "300"]


@pytest.mark.parametrize(
    "arguments", [("--watch", "/mnt/a"), ("/mnt/a", "--watch"), ("--watch", "0.5", "41")]
)
def test_stat_of_a_mount_is_printed_again(
    busy: FakeSysfs, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code, out, _ = efuse(capsys, "stat", *arguments, "--count", "2")
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.startswith("lookup")]
    assert [row[1:3] for row in rows] == [["1", "1"], ["200", "180"]]


def test_stat_json_that_is_printed_again_is_a_line_each_time(
    busy: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = efuse(capsys, "stat", "--watch", "--json")
    assert code == 0
    mounts = [json.loads(line)["mounts"][0] for line in out.splitlines()]
    assert [mount["opcodes"]["lookup"]["hits"] for mount in mounts] == [1, 180, 270]


def test_stat_with_an_interval_ends_on_an_interrupt(
    busy: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = efuse(capsys, "stat", "--interval", "1", "--json")
    assert (code, len(out.splitlines())) == (0, 2)


@pytest.mark.parametrize("arguments", [("--watch", "0"), ("--watch", "1", "--interval", "1")])
def test_stat_that_cannot_be_watched_fails(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code, out, _ = efuse(capsys, "stat", *arguments)
    assert (code, out) == (2, "")


@pytest.mark.parametrize("command", ["stat", "top"])
def test_rates_of_channels_are_shown_and_the_same_in_json(
    sysfs: FakeSysfs,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    sysfs.add(41, "/mnt/a", nodes=(0, 1))
    sysfs.count_channel(41, 1, node=1, slots=4, sent=77)
    monkeypatch.setattr("time.monotonic_ns", itertools.count(0, 10**9).__next__)

    def pause(seconds: float) -> None:
        sysfs.count_channel(
            41, 0, slots=4, depth=1, service_ns=2000, poll_hits=5, sent=4000, stolen=2000,
            elsewhere=4000, brought=2000,
        )  # fmt: skip

    monkeypatch.setattr(f"efuse.cli.{command}.pause", pause)
    once = ["--once"] if command == "top" else ["41", "--count", "1"]
    sysfs.count_channel(41, 0, slots=4)
    code, out, _ = efuse(capsys, command, *once)
    assert code == 0
    first, mount = ("NODE", "") if command == "top" else ("MOUNT NODE", "/mnt/a ")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith(first))
    assert lines[start : start + 3] == [
        f"{first.removesuffix('NODE')}NODE CPU RATE/s DEPTH FLIGHT SERVICE LOAD POLL SPIN SLEEP "
        "ELSE/s STOLEN/s",
        f"{mount}0 0 4.0k 1 0 2.0 us 0 100% - 0 4.0k 2.0k",
        f"{mount}1 1 0 0 0 - - - - 0 0 0",
    ]
    sysfs.count_channel(41, 0, slots=4)
    code, out, _ = efuse(capsys, command, *once, "--json")
    (found,) = json.loads(out)["mounts"]
    cpu, other = found["channels"]
    assert (cpu["per_second"], cpu["load"]) == (4000, 0.004)
    assert (cpu["stolen_share"], cpu["elsewhere_share"], cpu["poll_hit_ratio"]) == (0.5, 1, 1)
    assert (cpu["group"]["depth"], cpu["group"]["node"]) == (1, 0)
    assert (other["group"]["node"], other["per_second"]) == (1, 0)
    assert [node["group"]["cpus"] for node in found["nodes"]] == [[0], [1]]
    assert found["channel_total"]["per_second"] == 4000
    assert found["after"]["balance"]["spin_ns"] == 50_000


def test_top_once_prints_a_frame(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs.add(41, "/mnt/a")
    monkeypatch.setattr(
        "efuse.cli.top.pause",
        lambda seconds: sysfs.count(41, "lookup", requests=100, hits=90, daemon=10),
    )
    code, out, _ = efuse(capsys, "top", "--once")
    assert code == 0
    assert out.splitlines()[0] == "/mnt/a  #41  efuse attached  ttl  0 waiting"
    assert any(line.startswith("lookup") and "90.0%" in line for line in out.splitlines())


def test_top_json_has_the_fields_of_the_frame(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs.add(41, "/mnt/a")
    monkeypatch.setattr(
        "efuse.cli.top.pause",
        lambda seconds: sysfs.count(41, "open", requests=10, daemon=10, no_handler=10),
    )
    code, out, _ = efuse(capsys, "top", "--once", "--json")
    assert code == 0
    (mount,) = json.loads(out)["mounts"]
    (row,) = mount["opcodes"]
    assert row["passed"] == {"no_handler": 10}
    assert row["hit_ratio"] == 0
    assert row["per_second"] > 0
    assert mount["after"]["maps"] == [{"name": "entries", "used": 41, "capacity": 100}]


@pytest.fixture
def plain(sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch) -> FakeCounters:
    """A plain FUSE mount that gets requests whenever a command waits."""
    counters = FakeCounters(since_ns=10**9)
    sysfs.add_plain(62, "/mnt/plain", waiting=3)
    monkeypatch.setattr("efuse.bpf.requests.RequestCounters", lambda: counters)
    monkeypatch.setattr("time.monotonic_ns", itertools.count(2 * 10**9, 10**9).__next__)
    rounds = itertools.count(1)

    def pause(seconds: float) -> None:
        n = next(rounds)
        counters.count(62, "lookup", {8: 30 * n, 12: 10 * n}, errors=5 * n, ns=4_000_000 * n)

    for command in ("stat", "top"):
        monkeypatch.setattr(f"efuse.cli.{command}.pause", pause)
    return counters


@pytest.mark.parametrize("loaded", [True, False])
def test_stat_lists_plain_mounts_next_to_the_others(
    sysfs: FakeSysfs, plain: FakeCounters, capsys: pytest.CaptureFixture[str], loaded: bool
) -> None:
    if loaded:
        sysfs.add(41, "/mnt/a")
    else:
        (sysfs.root / "connections").rmdir()
    code, out, err = efuse(capsys, "stat")
    assert (code, err, plain.closed) == (0, "", True)
    rows = table(out, "ID")
    assert rows[1 + loaded] == "62 fuse /mnt/plain - - 40 - 40"
    assert rows[-1].startswith("plain FUSE mounts were counted for ")


@pytest.mark.parametrize("mount", ["/mnt/plain/a/file", "62"])
def test_stat_of_a_plain_mount_shows_latencies_and_since_when(
    plain: FakeCounters, capsys: pytest.CaptureFixture[str], mount: str
) -> None:
    code, out, _ = efuse(capsys, "stat", mount)
    assert (code, plain.closed) == (0, True)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0].startswith("/mnt/plain connection 62 plain FUSE 3 waiting counted for 2.0 s")
    assert lines[1:4] == [
        "OPCODE REQUESTS ERRORS MEAN P50 P99",
        "lookup 40 5 100 us 55 us 1.0 ms",
        "total 40 5 100 us 55 us 1.0 ms",
    ]
    assert lines[5] == "TOOK REQUESTS"
    assert lines[6].split()[:4] == ["<", "66", "us", "30"]
    assert lines[10].split()[:4] == ["<", "1.0", "ms", "10"]
    assert lines[6].count("█") == 3 * lines[10].count("█") + 1


def test_stat_of_a_plain_mount_says_the_same_in_json(
    plain: FakeCounters, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = efuse(capsys, "stat", "/mnt/plain", "--watch", "--count", "2", "--json")
    assert code == 0
    first, second = (json.loads(line)["mounts"][0] for line in out.splitlines())
    assert (first["kind"], first["since_ns"], first["waiting"]) == ("fuse", 10**9, 3)
    assert first["opcodes"]["lookup"]["requests"] == 40
    assert (second["opcodes"]["lookup"]["errors"], second["latency"]["lookup"][8]) == (10, 60)


def test_rates_of_a_plain_mount_are_shown_and_the_same_in_json(
    plain: FakeCounters, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = efuse(capsys, "stat", "--interval", "1", "--count", "1")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[:2] == [
        "MOUNT OPCODE RATE/s HIT DAEMON/s KERNEL DAEMON ERR/s P50 P99",
        "/mnt/plain lookup 40 - 40 - 100 us 5 55 us 1.0 ms",
    ]


def test_top_json_of_a_plain_mount_has_the_fields_of_the_frame(
    plain: FakeCounters, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = efuse(capsys, "top", "--once", "--json")
    assert code == 0
    (mount,) = json.loads(out)["mounts"]
    (row,) = mount["opcodes"]
    assert (row["per_second"], row["errors_per_second"], row["hit_ratio"]) == (40, 5, None)
    assert (row["latency"][8], row["latency"][12]) == (30, 10)


def test_top_once_shows_a_plain_mount(
    plain: FakeCounters, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = efuse(capsys, "top", "--once")
    assert (code, plain.closed) == (0, True)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0].startswith("/mnt/plain #62 plain FUSE 3 waiting counted for ")
    assert lines[1] == "total 40/s errors 5/s mean 100 us p50 55 us p99 1.0 ms"
    assert lines[2:4] == [
        "OPCODE RATE/s ERR/s DAEMON P50 P99 LATENCY",
        "lookup 40 5 100 us 55 us 1.0 ms █ ▃",
    ]


@pytest.mark.parametrize("command", [("stat",), ("top", "--once"), ("stat", "62")])
def test_plain_mounts_are_listed_without_permission_to_count(
    plain: FakeCounters,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.setattr("efuse.bpf.tracing.may_trace", lambda: False)
    code, out, err = efuse(capsys, *command)
    assert code == 0
    output = "plain FUSE mounts are not counted: tracing needs root (EPERM); try: run as root,"
    assert output in " ".join((out + err).split())
    assert "/mnt/plain" in out
    assert "lookup" not in out


DEVICE_COLUMNS = "DEVICE DISK CMD/s RD/s WR/s IN OUT MEDIA CORES DEV KERN POL OFF"


def test_stat_shows_the_devices_below_the_mounts(
    sysfs: FakeSysfs, configfs: FakeConfigfs, capsys: pytest.CaptureFixture[str]
) -> None:
    sysfs.add(41, "/mnt/a")
    csd.create("one", {})
    csd.create("off", {"power": 0})
    configfs.busy["one"] = ["/mnt/b", "/mnt/c"]
    configfs.count("one", commands=7, reads=12_345, link_write_bytes=5 << 19, core_busy_ns=4000)
    configfs.count("one", chosen_device=3, chosen_kernel=1, actual_ns=100, error_ns=20)
    code, out, _ = efuse(capsys, "stat")
    assert code == 0
    assert out.splitlines()[1].split()[2] == "/mnt/a"
    assert out.splitlines()[2:4] == ["", "devices  IN OUT MEDIA in MiB  DEV KERN POL in batches"]
    assert table(out, "DEVICE") == [
        "DEVICE DISK CMD RD WR IN OUT MEDIA BUSY DEV KERN POL OFF MOUNT",
        "one csd0 7 12.3k 0 2.50 0 0 4.0 us 3 1 0 20.0% /mnt/b /mnt/c",
    ]
    (device,) = json.loads(efuse(capsys, "stat", "--json")[1])["devices"]
    assert (device["name"], device["disk"], device["cores"]) == ("one", "/dev/csd0", 1)
    assert device["mounts"] == ["/mnt/b", "/mnt/c"]
    assert (device["counters"]["commands"], device["counters"]["chosen_device"]) == (7, 3)


def test_stat_of_a_mount_shows_no_devices(
    sysfs: FakeSysfs, configfs: FakeConfigfs, capsys: pytest.CaptureFixture[str]
) -> None:
    sysfs.add(41, "/mnt/a")
    csd.create("one", {})
    assert "DEVICE" not in efuse(capsys, "stat", "41")[1]
    assert json.loads(efuse(capsys, "stat", "41", "--json")[1])["devices"] == []


def test_stat_without_devices_has_no_table_of_them(
    sysfs: FakeSysfs, configfs: FakeConfigfs, capsys: pytest.CaptureFixture[str]
) -> None:
    sysfs.add(41, "/mnt/a")
    assert "DEVICE" not in efuse(capsys, "stat")[1]
    configfs.root.rmdir()  # as without csd.ko
    assert "DEVICE" not in efuse(capsys, "stat")[1]
    assert json.loads(efuse(capsys, "stat", "--json")[1])["devices"] == []
    assert "DEVICE" not in efuse(capsys, "top", "--once", "--interval", "0.1")[1]


@pytest.mark.parametrize("loaded", [True, False])
def test_devices_are_shown_without_mounts_and_without_their_module(
    sysfs: FakeSysfs, configfs: FakeConfigfs, capsys: pytest.CaptureFixture[str], loaded: bool
) -> None:
    csd.create("one", {})
    if not loaded:
        (sysfs.root / "connections").rmdir()
    lines = efuse(capsys, "stat")[1].splitlines()
    assert lines[:2] == ["no FUSE file system is mounted", ""]
    assert lines[4].split()[:2] == ["one", "csd0"]
    lines = efuse(capsys, "stat", "--interval", "0.1", "--count", "1")[1].splitlines()
    assert lines[0].startswith("devices  ")
    assert lines[2].split()[:2] == ["one", "csd0"]
    lines = efuse(capsys, "top", "--once", "--interval", "0.1")[1].splitlines()
    assert lines[0] == "no FUSE file system is mounted"
    assert lines[3].split()[:2] == ["one", "csd0"]


def test_stat_and_top_without_mounts_module_and_devices_fail(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    (sysfs.root / "connections").rmdir()
    for command in (("stat",), ("top", "--once")):
        code, out, err = efuse(capsys, *command)
        assert (code, out) == (1, "")
        assert err.startswith("efuse: the eFuse module is not loaded")


@pytest.mark.parametrize("command", ["stat", "top"])
def test_rates_of_devices_are_shown_and_the_same_in_json(
    sysfs: FakeSysfs,
    configfs: FakeConfigfs,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    sysfs.add(41, "/mnt/a")
    csd.create("one", {"cores": 2})
    # Each sample reads a device and then a mount, so the samples of each are 2 s apart.
    monkeypatch.setattr("time.monotonic_ns", itertools.count(0, 10**9).__next__)
    monkeypatch.setattr(
        f"efuse.cli.{command}.pause",
        lambda seconds: configfs.count(
            "one", commands=200, link_read_bytes=4 << 20, core_busy_ns=10**9, chosen_device=150,
            chosen_kernel=50, predicted_ns=900, actual_ns=1000, error_ns=250,
        ),
    )  # fmt: skip
    once = ["--once"] if command == "top" else ["--count", "1"]
    _, out, _ = efuse(capsys, command, *once)
    assert table(out, "DEVICE") == [
        DEVICE_COLUMNS,
        "one csd0 100 0 0 0 2 0 25.0% 75 25 0 25.0%",
    ]
    configfs.count("one", **dict.fromkeys(DEVICE_COUNTERS, 0))
    _, out, _ = efuse(capsys, command, *once, "--json")
    found = json.loads(out)
    assert [mount["after"]["connection"] for mount in found["mounts"]] == [41]
    (device,) = found["devices"]
    assert (device["after"]["name"], device["interval_ns"]) == ("one", 2 * 10**9)
    assert (device["per_second"]["commands"], device["core_busy_share"]) == (100, 0.25)
    assert (device["device_share"], device["error_ratio"]) == (0.75, 0.25)
    assert device["counters"]["chosen_kernel"] == 50


def test_ctl_get_prints_and_ctl_set_writes_an_attribute(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sysfs.add(41, "/mnt/a")
    assert efuse(capsys, "ctl", "get", "/mnt/a", "consistency") == (0, "ttl\n", "")
    assert efuse(capsys, "ctl", "set", "/mnt/a", "consistency", "strict") == (0, "", "")
    assert (path / "consistency").read_text().startswith("strict")
    assert efuse(capsys, "ctl", "set", "41", "invalidate", "1") == (0, "", "")
    assert (path / "invalidate").read_text() == "1"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("get", "41", "nothing"), 2, "there is no attribute 'nothing'"),
        (("set", "41", "no_open", "yes"), 1, "no_open cannot be 'yes'"),
        (("set", "41", "state", "plain"), 1, "state can only be read"),
        (("get", "41", "abort"), 1, "abort can only be written"),
        (("get", "42", "state"), 1, "there is no eFuse connection 42"),
    ],
)
def test_ctl_with_an_invalid_argument_names_it(
    sysfs: FakeSysfs,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    sysfs.add(41, "/mnt/a")
    status, out, err = efuse(capsys, "ctl", *arguments)
    assert (status, out) == (code, "")
    assert err.startswith(f"efuse: {message}")


def test_ctl_list_shows_values(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    sysfs.add(41, "/mnt/a", map_full="17")
    code, out, _ = efuse(capsys, "ctl", "list", "41", "--json")
    assert code == 0
    values = {entry["name"]: entry.get("value") for entry in json.loads(out)}
    assert values["map_full"] == "17"
    assert values["invalidate"] == ""
    code, out, _ = efuse(capsys, "ctl", "list")
    assert code == 0
    assert any(
        line.startswith("consistency") and "strict or ttl or cto or exclusive" in line
        for line in out.splitlines()
    )


def test_ctl_completes_names_and_values(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    context = ctl_command.cli.make_context("ctl", ["get", "x", "y"], resilient_parsing=True)
    set_command = ctl_command.cli.commands["set"]
    name = next(p for p in set_command.params if p.name == "name")
    assert [i.value for i in name.shell_complete(context, "c")] == [
        "consistency",
        "caller_independent",
        "channels/policy",
        "channels/threshold",
        "channels/spread",
        "channels/spin_ns",
    ]
    assert [i.value for i in name.shell_complete(context, "st")] == ["stable_nodeids"]
    value = next(p for p in set_command.params if p.name == "value")
    context.params["name"] = "consistency"
    assert [i.value for i in value.shell_complete(context, "ex")] == ["exclusive"]


def test_mounts_are_completed(sysfs: FakeSysfs) -> None:
    sysfs.add(41, "/mnt/a")
    context = ctl_command.cli.make_context("ctl", [], resilient_parsing=True)
    param = ctl_command.cli.commands["get"].params[0]
    assert [i.value for i in param.shell_complete(context, "/m")] == ["/mnt/a"]
    assert param.shell_complete(context, "/x") == []
    assert [(i.value, i.help) for i in param.shell_complete(context, "4")] == [("41", "/mnt/a")]
