# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counters, times, and the commands that show them agree with the operations on a live mount."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from efuse import Passthrough, mount
from efuse.bench.systems import System, mounted
from efuse.control import Connection
from efuse.fs.options import CAPACITY_MAPS
from efuse.stats import REASONS, Counters, Sample, read
from tests.conftest import Eventually
from tests.guest.support.daemons import as_user
from tests.guest.support.forked import efuse

# The opcodes whose pyfuse3 handler has another name.
HANDLERS = {"readdirplus": "readdir"}


def _make_file(directory: Path) -> None:
    (directory / "file").write_bytes(b"x" * 100)
    os.setxattr(directory / "file", "user.present", b"value")


@pytest.fixture
def source(lower: Path) -> Path:
    """Return a directory with one file."""
    _make_file(lower)
    return lower


@pytest.fixture(scope="module")
def counting(lower_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Yield the pass-through on eFuse, with a daemon that counts its requests.

    The tests share it, because the daemon takes seconds to start.
    """
    directory = lower_root / "counting"
    directory.mkdir()
    _make_file(directory)
    with mounted("efuse", directory, tmp_path_factory.mktemp("counting")) as made:
        yield made
    shutil.rmtree(directory)


@pytest.fixture
def system(source: Path, mountpoint: Path) -> Iterator[System]:
    """Yield the pass-through on eFuse, with a daemon that does not count, and so starts faster."""
    operations = Passthrough(
        source,
        consistency="exclusive",
        entry_timeout=0,
        attr_timeout=0,
        writeback=True,
        lazy_atime=True,
    )
    with mount(operations, mountpoint, required=True) as served:
        made = System("efuse", mountpoint)
        made.connection = served.connection
        yield made
    operations.close()


def connection_of(system: System) -> Connection:
    assert system.connection is not None
    return Connection(system.connection)


@pytest.fixture
def connection(system: System) -> Connection:
    return connection_of(system)


def change(before: Sample, after: Sample, opcode: str) -> Counters:
    return after.opcodes.get(opcode, Counters()) - before.opcodes.get(opcode, Counters())


def get_present(system: System, times: int) -> None:
    for _ in range(times):
        assert os.getxattr(system.root / "file", "user.present") == b"value"


def test_counters_match_the_requests_made(counting: System) -> None:
    connection = connection_of(counting)
    before, usage = read(connection, timing=False), counting.usage()
    get_present(counting, 10)
    after, used = read(connection, timing=False), counting.usage()
    assert change(before, after, "getxattr") == Counters(requests=10, hits=9, daemon=1, miss=1)
    assert used.requests["getxattr"] - usage.requests.get("getxattr", 0) == 1


def test_error_counters_match_the_failed_requests(system: System, connection: Connection) -> None:
    before = read(connection, timing=False)
    for _ in range(5):
        with pytest.raises(OSError, match="No data"):
            os.getxattr(system.root / "file", "user.absent")
    after = read(connection, timing=False)
    expected = Counters(requests=5, hits=4, daemon=1, miss=1, errors=1)
    assert change(before, after, "getxattr") == expected


def test_counters_show_why_a_request_went_to_the_daemon(
    system: System, connection: Connection
) -> None:
    get_present(system, 2)
    before = read(connection, timing=False)
    connection.invalidate()
    get_present(system, 2)
    after = read(connection, timing=False)
    expected = Counters(requests=2, hits=1, daemon=1, stale=1)
    assert change(before, after, "getxattr") == expected


def test_strict_mode_declines_every_answer(system: System, connection: Connection) -> None:
    get_present(system, 2)
    connection.consistency = "strict"
    before = read(connection, timing=False)
    get_present(system, 4)
    after = read(connection, timing=False)
    expected = Counters(requests=4, daemon=4, declined=4)
    assert change(before, after, "getxattr") == expected


def use_everything(root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "new").write_bytes(b"data")
    (root / "sub" / "new").rename(root / "sub" / "newer")
    for _ in range(3):
        assert (root / "sub" / "newer").read_bytes() == b"data"
        assert [p.name for p in (root / "sub").iterdir()] == ["newer"]
        assert not (root / "sub" / "absent").exists()
        os.statvfs(root)
    (root / "sub" / "newer").unlink()
    (root / "sub").rmdir()


def test_counters_add_up(system: System, connection: Connection) -> None:
    use_everything(system.root)
    sample = read(connection, timing=False)
    assert sample.total.hits > 0
    for opcode, counters in sample.opcodes.items():
        answered = counters.hits + counters.refused + counters.daemon
        # The RELEASE of a file that the kernel opened by itself is not sent.
        if opcode != "release":
            assert counters.requests == answered, opcode
        assert counters.daemon == sum(getattr(counters, r) for r in REASONS), opcode
        assert counters.errors <= counters.daemon, opcode


def test_counters_agree_with_those_of_the_daemon(counting: System, eventually: Eventually) -> None:
    connection = connection_of(counting)
    before, usage = read(connection, timing=False), counting.usage()
    use_everything(counting.root)

    def differences() -> dict[str, tuple[int, int]]:
        after, used = read(connection, timing=False), counting.usage()
        found = {}
        for opcode in after.opcodes:
            handler = HANDLERS.get(opcode, opcode)
            mine = change(before, after, opcode).daemon
            theirs = used.requests.get(handler, 0) - usage.requests.get(handler, 0)
            if handler in used.requests and mine != theirs:
                found[opcode] = (mine, theirs)
        return found

    # A RELEASE is sent asynchronously.
    eventually(lambda: not differences(), what="the counters to agree")


def test_times_are_taken_only_while_they_are_watched(
    system: System, connection: Connection, eventually: Eventually
) -> None:
    def timed() -> int:
        """Return the number of kernel answers that were timed. Reading it does not count as
        watching."""
        return connection.counts("stats/getxattr")["hit_timed"]

    get_present(system, 10)
    assert timed() == 0

    read(connection, timing=True)
    begun_ns = time.monotonic_ns()
    get_present(system, 10)
    taken_ns = time.monotonic_ns() - begun_ns
    assert timed() == 10
    sample = read(connection, timing=True)
    taken = sample.opcodes["getxattr"]
    assert taken.hit_mean_ns is not None
    # The calls did not overlap, so the sum of their measured times is at most the total.
    assert 0 < taken.hit_mean_ns * 10 <= taken_ns

    def is_over() -> bool:
        before = timed()
        get_present(system, 1)
        return timed() == before

    eventually(is_over, what="the times to be taken no more")


def test_times_are_taken_when_another_user_watches_them(
    system: System, connection: Connection
) -> None:
    get_present(system, 10)
    assert connection.counts("stats/getxattr")["hit_timed"] == 0
    assert as_user(65534, (connection.path / "watch_times").read_text) == "10\n"
    get_present(system, 10)
    assert connection.counts("stats/getxattr")["hit_timed"] == 10


def test_waiting_is_zero_when_nothing_is_in_flight(
    connection: Connection, eventually: Eventually
) -> None:
    eventually(lambda: connection.waiting == 0, what="the last reply")


def test_stat_json_matches_the_requests_made(system: System, connection: Connection) -> None:
    get_present(system, 10)
    (mount,) = json.loads(efuse("stat", str(system.root), "--json"))["mounts"]
    assert mount["connection"] == connection.id
    assert mount["mountpoint"] == str(system.root)
    assert mount["state"] == "attached"
    counters = mount["opcodes"]["getxattr"]
    assert (counters["requests"], counters["hits"], counters["daemon"]) == (10, 9, 1)


def test_exporter_exports_the_requests_made(system: System, connection: Connection) -> None:
    get_present(system, 10)
    found = {
        (sample.name, sample.labels.get("opcode")): sample.value
        for family in text_string_to_metric_families(efuse("exporter", "--once", "--times"))
        for sample in family.samples
        if sample.labels.get("connection") in (None, str(connection.id))
    }
    assert found["efuse_up", None] == 1
    assert found["efuse_requests_total", "getxattr"] == 10
    assert found["efuse_hits_total", "getxattr"] == 9
    assert found["efuse_daemon_requests_total", "getxattr"] == 1
    # The first run of the exporter starts the timing.
    get_present(system, 3)
    assert "efuse_hit_duration_seconds_count{" in efuse("exporter", "--once", "--times")


def test_top_once_json_has_rates_times_and_maps(
    system: System, connection: Connection, eventually: Eventually
) -> None:
    get_present(system, 1)
    code = "import os, sys\nwhile 1: os.getxattr(sys.argv[1], 'user.present')"
    with subprocess.Popen([sys.executable, "-c", code, str(system.root / "file")]) as load:
        try:
            eventually(lambda: read(connection, timing=False).opcodes["getxattr"].requests > 1)
            text = efuse("top", "--once", "--json", "--interval", "1")
        finally:
            load.kill()
    mounts = json.loads(text)["mounts"]
    (mount,) = [m for m in mounts if m["after"]["connection"] == connection.id]
    (row,) = [r for r in mount["opcodes"] if r["opcode"] == "getxattr"]
    # It is not exactly 1, because the counters are read one after the other.
    assert row["hit_ratio"] > 0.9
    assert row["per_second"] > 0
    assert row["daemon_per_second"] == 0
    assert row["hit_mean_ns"] > 0
    used = {m["name"]: m["used"] for m in mount["after"]["maps"]}
    assert used.keys() == set(CAPACITY_MAPS)
    assert used["blobs"] == 1


def test_top_once_shows_the_mount(system: System) -> None:
    text = efuse("top", "--once", "--interval", "0.1")
    assert str(system.root)[-20:] in text
    assert "efuse attached  exclusive" in text


def test_maps_dump_shows_the_learned_values(system: System) -> None:
    get_present(system, 1)
    (element,) = json.loads(efuse("maps", "dump", str(system.root), "blobs", "--json"))
    assert element["key"]["name"] == "user.present"
    assert element["key"]["opcode"] == "getxattr"
    assert element["value"]["data"] == "value"
    used = {
        m["name"]: m["used"] for m in json.loads(efuse("maps", "list", str(system.root), "--json"))
    }
    assert used["blobs"] == 1
    elements = json.loads(efuse("maps", "dump", str(system.root), "entries", "--json"))
    assert [e["key"]["name"] for e in elements] == ["file"]


def test_ctl_set_changes_what_the_kernel_does(system: System, connection: Connection) -> None:
    efuse("ctl", "set", str(system.root), "consistency", "cto")
    assert connection.consistency == "cto"
    assert efuse("ctl", "get", str(system.root), "consistency") == "cto\n"
    efuse("ctl", "set", str(system.root), "abort", "1")
    with pytest.raises(OSError):
        os.getxattr(system.root / "file", "user.other")
