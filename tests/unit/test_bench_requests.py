# SPDX-License-Identifier: LGPL-2.1-or-later
"""The workloads of requests alone: the callers on a file of this machine, and the proofs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path

import pytest

from efuse.bench import BALANCED, KNOWN, REQUESTS, SCALE, Settings, ring
from efuse.bench import usage as usage_module
from efuse.bench.clock import CLOCKS
from efuse.bench.load import FILE_BYTES, load, prepare
from efuse.bench.programs import SID, URING, command
from efuse.bench.registry import METADATA
from efuse.bench.requests import expanded
from efuse.bench.ring import COPYING, EFUSE_RING, OVER_RINGS, OWN, RING, RINGS, ZERO_COPY
from efuse.bench.rounds import _switches
from efuse.bench.run import _daemon, _systems, check
from efuse.bench.systems import System, _RingSystem
from efuse.bench.transport import _Device, _words, missed, mistaken, misused
from efuse.bench.usage import Moves, Usage, channel_counts
from efuse.bench.workload import Outcome
from efuse.cli.main import main
from efuse.control import Connection
from efuse.errors import EfuseError, NotSupportedError
from tests.unit.fake_sysfs import FakeSysfs

_READY = "import signal, sys; print('ready', file=sys.stderr, flush=True); signal.pause()"
CPU = min(os.sched_getaffinity(0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    prepare(tmp_path / "file")
    return tmp_path / "file"


@pytest.mark.parametrize("kind", ["stat", "read"])
def test_callers_count_and_time_each_request(file: Path, kind: str) -> None:
    found = load(file, kind, 4096, 50, [CPU, CPU])
    assert found.requests > 1
    assert found.elapsed_ns >= 50_000_000
    assert 0 < found.latency_p50_ns <= found.latency_p99_ns < found.elapsed_ns
    assert (found.queueing_p50_ns, found.queueing_p99_ns) == (None, None)  # not on a daemon
    assert found.per_second == pytest.approx(found.requests / (found.elapsed_ns / 1e9))


def test_callers_notice_a_wrong_size(file: Path) -> None:
    with file.open("ab") as end:
        end.write(b"!")
    with pytest.raises(EfuseError, match=f"wrong size {FILE_BYTES + 1}"):
        load(file, "stat", 4096, 50, [CPU])


@pytest.mark.parametrize("at", [0, 4095, 4096, FILE_BYTES - 1])
def test_callers_notice_wrong_data(file: Path, at: int) -> None:
    with file.open("r+b") as data:
        data.seek(at)
        data.write(b"!")
    with pytest.raises(EfuseError, match="wrong data"):
        load(file, "read", 128 << 10, 50, [CPU])


def test_callers_notice_missing_data(file: Path) -> None:
    os.truncate(file, 128 << 10)
    with pytest.raises(EfuseError, match="0 bytes at 131072"):
        load(file, "read", 128 << 10, 50, [CPU])


@pytest.mark.parametrize("name", ["scale-stat-2", "scale-read-4", "skew"])
def test_workload_is_measured_and_verified(tmp_path: Path, name: str) -> None:
    workload = REQUESTS[name]
    workload.prepare(tmp_path, 50)
    assert workload.warm_up(tmp_path, tmp_path, 50)
    found = workload.measure(tmp_path, 50, 1, CLOCKS["time"])
    assert found.value > 0 and found.requests > 0
    assert set(found.measures) == {
        "latency_p50",
        "latency_p99",
        "caller_switches",
        "caller_preempted",
    }
    assert found.measures["latency_p50"].value > 0
    assert workload.verify(tmp_path, tmp_path, tmp_path)


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    mount, lower = tmp_path / "mount", tmp_path / "lower"
    for directory in (mount, lower):
        directory.mkdir()
        REQUESTS["skew"].prepare(directory, 50)
    with (mount / "file").open("r+b") as data:
        data.seek(2000)
        data.write(b"!")
    assert not REQUESTS["skew"].warm_up(mount, lower, 50)
    assert not REQUESTS["skew"].verify(mount, lower, lower)


def test_scale_has_up_to_twice_as_many_threads_as_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2})
    names = expanded(("stat", SCALE, "scale-read-4"))
    assert names[0] == "stat"
    assert list(names[1:]) == [f"scale-{k}-{n}" for k in ("stat", "read") for n in (1, 2, 4)]


def test_callers_are_spread_over_the_cpus_or_all_on_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1, 3})
    scale, skew = REQUESTS["scale-stat-4"], REQUESTS["skew"]
    assert scale.placed(scale.threads) == [1, 3, 1, 3]
    assert skew.placed(skew.threads) == [1, 1, 1, 1]


# The systems


def test_each_workload_has_systems_and_a_daemon_of_its_own() -> None:
    settings = Settings(("stat", "skew"))
    assert _systems(settings, REQUESTS["skew"]) == BALANCED
    assert _daemon(settings, REQUESTS["skew"]) == "passthrough_ll"
    assert "ext4" in _systems(settings, METADATA["stat"])
    assert _daemon(settings, METADATA["stat"]) == "passthrough"


@pytest.mark.parametrize(
    ("workload", "option", "wrong"),
    [
        ("skew", "--system", "fuse,ext4"),
        ("scale", "--system", "efuse-direct"),
        ("scale-stat-1", "--daemon", "passthrough"),
        ("scale-stat-1", "--system", "fuse,fuse-io-uring"),
        ("stat", "--system", "fuse-io-uring"),
        ("stat", "--system", "efuse-queues"),
    ],
)
def test_unsupported_system_or_daemon_of_a_workload_fails(
    workload: str, option: str, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error comes before a guest is booted."""
    with pytest.raises(SystemExit) as end:
        main(["bench", "--workload", workload, option, wrong])
    assert end.value.code == 2
    assert "is not measured" in capsys.readouterr().err


def test_every_transport_has_its_own_arguments() -> None:
    found = {name: _words(name, Path("/src"), Path("/mnt"), "passthrough_ll") for name in KNOWN}
    assert all("cache=never,timeout=0" in " ".join(words) for words in found.values())
    cloned = {name for name, words in found.items() if "clone_fd" in " ".join(words)}
    assert cloned == {"fuse-clone-fd", "efuse-queues"}
    asking = {name for name, words in found.items() if "io_uring" in " ".join(words)}
    assert asking == set(RINGS)
    ours = {name for name, words in found.items() if any(URING in word for word in words)}
    assert ours == set(OWN)
    assert {name for name in OWN if ",zero_copy" in " ".join(found[name])} == set(ZERO_COPY)
    for name in ("efuse-queues", *OVER_RINGS):
        assert "EFUSE_CHANNELS=0" in found[name]
    for name in ("efuse", "efuse-own", "efuse-bpf"):
        assert "EFUSE_CHANNELS=1" in found[name]


def test_mixed_workloads_are_accepted_on_common_systems() -> None:
    check(Settings(("stat", SCALE, "skew"), systems=("fuse", "efuse")))
    check(Settings(("stat", SCALE, "skew"), systems=("fuse", RING, "efuse"), daemon=SID))
    for daemon in (None, SID):
        check(Settings((SCALE, "skew"), systems=("efuse", *OWN), daemon=daemon))


def test_switches_of_a_request_include_preemptions() -> None:
    before, after = Usage(switches=5, preempted=1), Usage(switches=15, preempted=31)
    found = _switches(before, after, Outcome(1.0, requests=10, switches=60))
    assert {name: measure.value for name, measure in found.items()} == {
        "daemon_switches": 1.0,
        "daemon_preempted": 3.0,
        "switches": 10.0,
    }
    assert [name for name, measure in found.items() if measure.compared] == ["switches"]


# The proofs that requests took the intended way


def usage(requests: int, **counters: int) -> Usage:
    """Return a usage with all counts on the first of two CPUs."""
    if not counters:
        return Usage({"all": requests})
    channels = ({"elsewhere": 0, "stolen": 0} | counters, dict.fromkeys(_ALL, 0))
    return Usage({"all": requests}, channels=channels)


def over_rings(requests: int, *rings: int) -> Usage:
    return Usage({"all": requests}, rings=rings)


def moving(requests: int, data: int, zero_copied: int) -> Usage:
    """Return a usage of a daemon that counts its READs and WRITEs."""
    counted = Moves(requests, data, zero_copied, 0)
    return Usage({"all": requests}, rings=(requests,), moves=counted)


_ALL = ("sent", "elsewhere", "stolen", "brought")
NEW = {"sent": 0, "brought": 0}


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("fuse", usage(3), usage(103)),
        ("efuse-queues", usage(3, **NEW), usage(103, sent=100, brought=0)),
        (RING, over_rings(3, 1, 2), over_rings(103, 61, 42)),
        (RING, over_rings(3, 2**32 - 1, 2), over_rings(104, 59, 43)),
        (RING, over_rings(0), over_rings(100, 50, 50)),
        (EFUSE_RING, over_rings(3, 1, 2), over_rings(103, 61, 42)),
        (ZERO_COPY[0], moving(3, 2, 1), moving(103, 102, 101)),
        (ZERO_COPY[1], moving(3, 0, 0), moving(103, 0, 0)),
        (COPYING[0], moving(3, 2, 1), moving(103, 102, 1)),
        ("efuse", usage(3, sent=7, brought=7), usage(103, sent=107, brought=107)),
        (
            "efuse",
            usage(3, sent=7, brought=7),
            usage(104, sent=108, brought=108, stolen=9, elsewhere=9),
        ),
        (
            "efuse-own",
            usage(3, sent=7, brought=7, stolen=9),
            usage(104, sent=108, brought=108, stolen=9),
        ),
    ],
)
def test_requests_over_the_expected_transport_are_accepted(
    name: str, before: Usage, after: Usage
) -> None:
    assert missed(name, before, after, 100) == ""


@pytest.mark.parametrize(
    ("name", "before", "after", "why"),
    [
        ("fuse", usage(3), usage(102), "only 99 reached the daemon"),
        ("efuse", usage(3, **NEW), usage(4, sent=100, brought=100), "only 1 reached the daemon"),
        (RING, over_rings(3, 1, 2), over_rings(102, 61, 42), "only 99 reached the daemon"),
        (RING, over_rings(3, 1, 2), over_rings(103, 60, 42), "only 99 came over io_uring"),
        (RING, over_rings(3), over_rings(103), "only 0 came over io_uring"),
        (EFUSE_RING, over_rings(3), over_rings(103), "only 0 came over io_uring"),
        (ZERO_COPY[0], moving(3, 2, 1), moving(103, 102, 100), "of 100 READs and WRITEs only 99"),
        (ZERO_COPY[1], moving(3, 2, 1), moving(103, 102, 1), "WRITEs only 0 were zero-copied"),
        (
            ZERO_COPY[0],
            moving(3, 2, 2),
            replace(moving(102, 99, 99), requests={"all": 103}, rings=(103,)),
            "only 99 came over io_uring",
        ),
        (COPYING[1], moving(3, 0, 0), moving(103, 100, 4), "4 READs and WRITEs were zero-copied"),
        ("efuse-queues", usage(0, **NEW), usage(100, sent=99, brought=0), "only 99 were sent"),
        ("efuse-queues", usage(0, **NEW), usage(100, sent=100, brought=1), "1 requests came"),
        ("efuse-own", usage(0, sent=0), usage(100, sent=100, stolen=2), "2 requests were moved"),
        ("efuse-own", usage(0, sent=0), usage(100, sent=100, elsewhere=3), "3 requests were moved"),
        ("efuse", usage(0, sent=0, brought=9), usage(100, sent=100, brought=99), "only 90 came"),
    ],
)
def test_requests_over_another_transport_are_noticed(
    name: str, before: Usage, after: Usage, why: str
) -> None:
    assert why in missed(name, before, after, 100)


def test_transport_of_a_daemon_is_told_by_its_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    one, cloned, channels = _Device(1, 0), _Device(3, 0), _Device(3, 2)
    rings = _Device(1, 0, 2)
    right = {
        "fuse": one,
        "fuse-clone-fd": cloned,
        "efuse-queues": cloned,
        "efuse": channels,
        "efuse-own": channels,
        "efuse-bpf": channels,
        **dict.fromkeys(OVER_RINGS, rings),
    }
    for name, its in right.items():
        for device in (one, cloned, channels, rings):
            assert (misused(name, device) == "") == (device == its), (name, device)
    assert "1 channels for 2 CPUs" in misused("efuse", _Device(2, 1))
    for name in OVER_RINGS:
        assert misused(name, rings) == ""
        assert misused(name, _Device(1, 0, 1)) == "the daemon has 1 rings"
        assert misused(name, _Device(3, 2, 2)) == "the daemon has 2 channels"


def test_program_set_other_than_that_of_the_transport_is_noticed() -> None:
    assert mistaken("efuse", "none") == mistaken("efuse-bpf", "least_loaded") == ""
    assert "not least_loaded" in mistaken("efuse-bpf", "none")
    assert "not none" in mistaken("efuse-own", "least_loaded")


def test_descriptors_and_mappings_of_a_process_are_counted() -> None:
    null = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", _READY], stderr=subprocess.PIPE, **null) as child:
        assert child.stderr
        child.stderr.readline()
        assert _Device.of(child.pid, "/dev/null") == _Device(2, 0)
        assert _Device.of(child.pid, sys.executable).mappings == 0
        assert _Device.of(child.pid, os.path.realpath(sys.executable)).mappings > 0
        child.kill()


def test_counters_are_read_cpu_by_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs = FakeSysfs(tmp_path)
    sysfs.add(7, nodes=(0,) * 11)
    for cpu in range(11):
        sysfs.count_channel(7, cpu, sent=cpu, stolen=1, depth=5, service_ns=9)
    monkeypatch.setattr(usage_module, "Connection", partial(Connection, root=sysfs.root))
    found = channel_counts(7)
    assert [counts["sent"] for counts in found] == list(range(11))
    assert all(counts["stolen"] == 1 and "depth" not in counts for counts in found)
    assert Usage(channels=found).channel_total("sent") == 55


def test_plain_fuse_has_no_channels() -> None:
    assert channel_counts(None) == ()


# FUSE over io_uring


@pytest.mark.parametrize(("name", "module"), [(RING, "fuse"), (EFUSE_RING, "efuse")])
def test_io_uring_switch_is_restored_after_the_measurement(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = tmp_path / module / "parameters/enable_uring"
    switch.parent.mkdir(parents=True)
    switch.write_text("N\n")
    monkeypatch.setattr(ring, "_MODULES", tmp_path)
    with ring.enabled(name):
        assert switch.read_text() == "1"
    assert switch.read_text() == "N\n"


def test_a_kernel_without_the_switch_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "_MODULES", tmp_path)
    with (
        pytest.raises(NotSupportedError, match=r"has no io_uring: .*ENOENT") as caught,
        ring.enabled(RING),
    ):
        pytest.fail("it was switched on")
    assert caught.value.hint == "efuse bench --kernel 7"


def test_a_process_without_rings_has_none() -> None:
    assert ring.delivered(os.getpid()) == ()


def test_waiting_request_need_not_have_come_over_io_uring(monkeypatch: pytest.MonkeyPatch) -> None:
    system = _RingSystem.__new__(_RingSystem)
    system.name = RING
    before = over_rings(10, 4, 6)
    system.prove(before, replace(over_rings(110, 50, 58), waiting=2), 0)
    with pytest.raises(EfuseError, match="of 99 requests only 98 came over io_uring"):
        system.prove(before, replace(over_rings(110, 50, 58), waiting=1), 0)


@pytest.mark.parametrize("name", OWN)
def test_daemon_of_our_own_counts_in_a_file_next_to_the_mountpoint(
    name: str, tmp_path: Path
) -> None:
    words = command(URING, name, tmp_path, tmp_path / "mnt")
    assert Path(words[0]).name == URING and words[-2:] == [str(tmp_path), str(tmp_path / "mnt")]
    assert f"counts={tmp_path}/mnt.counts" in words[words.index("-o") + 1].split(",")
    counted = Moves(requests=4, data=3, zero_copied=2, moved_bytes=1 << 40)
    (tmp_path / "mnt.counts").write_bytes(
        b"".join(value.to_bytes(8, sys.byteorder) for value in astuple(counted))
    )
    system = System(name, tmp_path / "mnt")
    assert ring.moves(name, system.root) == counted
    assert system.moved_bytes() == counted.moved_bytes
    assert System(RING, system.root).moved_bytes() == 0


def test_data_of_another_system_moved_otherwise_is_noticed_on_a_mount_with_handlers() -> None:
    system = _RingSystem.__new__(_RingSystem)
    system.name = ZERO_COPY[1]
    system.prove(moving(10, 5, 5), moving(110, 7, 7), 0)
    with pytest.raises(EfuseError, match="of 2 READs and WRITEs only 1 were zero-copied"):
        system.prove(moving(10, 5, 5), moving(110, 7, 6), 0)
