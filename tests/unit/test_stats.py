# SPDX-License-Identifier: LGPL-2.1-or-later
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from efuse.control import Connection
from efuse.errors import ControlError
from efuse.stats import (
    Channel,
    ChannelCounters,
    Counters,
    PathCounters,
    Sample,
    between,
    rates,
    read,
    read_all,
)
from tests.unit.fake_sysfs import FakeSysfs

BEFORE = Sample(41, 1_000_000_000, opcodes={"lookup": Counters(requests=10, hits=4, daemon=6)})
AFTER = Sample(
    41,
    3_000_000_000,
    opcodes={
        "lookup": Counters(
            requests=110,
            hits=94,
            daemon=16,
            miss=7,
            expired=3,
            hit_ns=9_000,
            hit_timed=90,
            daemon_ns=8_000_000,
            daemon_timed=10,
        ),
        "getattr": Counters(requests=4, refused=4),
        "open": Counters(),
    },
)


def test_rates_are_differences_per_second() -> None:
    model = rates(BEFORE, AFTER)
    assert [row.opcode for row in model.opcodes] == ["getattr", "lookup"]
    row = model.opcodes[1]
    assert row.per_second == 50
    assert row.daemon_per_second == 5
    assert row.hit_ratio == 0.9
    assert row.passed == {"miss": 7, "expired": 3}
    assert row.hit_mean_ns == 100
    assert row.daemon_mean_ns == 800_000
    assert model.interval_ns == 2_000_000_000
    assert model.total.counters.requests == 104


def test_rates_without_requests_have_no_ratio_and_no_latency() -> None:
    model = rates(BEFORE, Sample(41, 2_000_000_000, opcodes=BEFORE.opcodes))
    assert model.opcodes == ()
    assert model.total.hit_ratio is None
    assert model.total.hit_mean_ns is None
    assert model.total.daemon_mean_ns is None


def test_rates_have_times_only_if_both_samples_have_them() -> None:
    for before, after in ((False, True), (True, False), (False, False)):
        model = rates(replace(BEFORE, timing=before), replace(AFTER, timing=after))
        (row,) = (row for row in model.opcodes if row.opcode == "lookup")
        assert (row.hit_mean_ns, row.daemon_mean_ns, row.counters.hit_timed) == (None, None, 0)
        assert model.total.hit_mean_ns is None
        assert row.per_second == 50


def test_rates_of_paths_have_times_only_if_both_samples_have_them() -> None:
    latency = (10, *[0] * 105)
    taken = PathCounters(requests=10, ns=900, timed=10, latency=latency, predicted=1, actual_ns=7)
    after = replace(AFTER, paths={"cache": taken})
    (path,) = rates(BEFORE, after).paths
    assert path.p50_ns is not None
    (path,) = rates(replace(BEFORE, timing=False), after).paths
    assert (path.p50_ns, path.p99_ns, path.counters.timed) == (None, None, 0)
    assert (path.per_second, path.actual_ns) == (5, 7)


def test_rates_of_different_connections_fails() -> None:
    with pytest.raises(ValueError, match="41 and 42"):
        rates(BEFORE, Sample(42, 2_000_000_000))


def test_rates_of_samples_in_reverse_order_fail() -> None:
    with pytest.raises(ValueError):
        rates(AFTER, BEFORE)


def test_between_leaves_out_mounts_that_came_or_went() -> None:
    model = between([BEFORE, Sample(7, 1)], [AFTER, Sample(8, 2)])
    assert [m.after.connection for m in model] == [41]


def test_reasons_are_in_order_of_frequency() -> None:
    counters = Counters(stale=2, miss=1, invalid_verdict=5, declined=2)
    assert list(counters.passed.items()) == [
        ("invalid_verdict", 5),
        ("declined", 2),
        ("stale", 2),
        ("miss", 1),
    ]


def test_json_has_the_fields_of_the_rates() -> None:
    model = json.loads(json.dumps(rates(BEFORE, AFTER).json()))
    assert model["opcodes"][1]["counters"]["hits"] == 90
    assert model["after"]["opcodes"]["lookup"]["hits"] == 94
    assert model["total"]["per_second"] == 52


def test_read_returns_the_counters_of_the_files(tmp_path: Path) -> None:
    sysfs = FakeSysfs(tmp_path)
    sysfs.add(41)
    sysfs.count(41, "lookup", requests=5, hits=3, daemon=2, miss=2, hit_ns=70, hit_timed=1)
    sample = read(Connection(41, root=sysfs.root), mountpoint="/mnt")
    assert sample.opcodes == {
        "lookup": Counters(requests=5, hits=3, daemon=2, miss=2, hit_ns=70, hit_timed=1)
    }
    assert (sample.state, sample.ops, sample.learned, sample.mountpoint) == (
        "attached",
        "efuse",
        12,
        "/mnt",
    )


def test_read_without_timing_watches_no_times(tmp_path: Path) -> None:
    sysfs = FakeSysfs(tmp_path)
    path = sysfs.add(41)
    sysfs.count(41, "open", requests=5, hits=5, hit_ns=70, hit_timed=1)
    (path / "watch_times").unlink()
    conn = Connection(41, root=sysfs.root)
    assert read(conn, timing=False).opcodes["open"] == Counters(requests=5, hits=5)
    with pytest.raises(ControlError, match="watch_times"):
        read(conn)


def test_read_without_a_line_fails_and_with_another_line_does_not(tmp_path: Path) -> None:
    sysfs = FakeSysfs(tmp_path)
    path = sysfs.add(41)
    sysfs.count(41, "mknod", requests=1)
    text = (path / "stats/mknod").read_text()
    (path / "stats/mknod").write_text("invented 3\n" + text)
    assert read(Connection(41, root=sysfs.root)).opcodes == {"mknod": Counters(requests=1)}
    sysfs.drop_line(41, "stats/mknod", "hits")
    with pytest.raises(ControlError, match="stats/mknod has no number hits"):
        read(Connection(41, root=sysfs.root))


def test_read_all_finds_the_mount_points(tmp_path: Path) -> None:
    sysfs = FakeSysfs(tmp_path)
    sysfs.add(41, "/mnt/a")
    sysfs.add(9)
    samples = read_all(root=sysfs.root, mountinfo=sysfs.mountinfo)
    assert [(s.connection, s.mountpoint) for s in samples] == [(9, ""), (41, "/mnt/a")]


def test_modules_of_samples_import_no_readers() -> None:
    values = tuple(f"from efuse.stats.{name} " for name in ("channels", "latency", "paths"))
    for cls in (Sample, PathCounters, ChannelCounters):
        text = Path(sys.modules[cls.__module__].__file__ or "").read_text()
        lines = [line.strip() for line in text.splitlines()]
        ours = [n for n in lines if n.startswith(("import efuse", "from efuse", "from ."))]
        assert all(line.startswith(values) for line in ours), ours


def test_control_and_stats_import_no_bpf() -> None:
    code = "import sys, efuse.stats, efuse.control; print('efuse.bpf' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"opcodes": {"lookup": Counters(requests=500)}}, {}),
        ({"opcodes": {"read": Counters(requests=1)}}, {}),
        ({"paths": {"direct": PathCounters(requests=9)}}, {}),
        ({"paths": {"direct": PathCounters(requests=9)}}, {"paths": {"direct": PathCounters()}}),
        ({"channels": {0: Channel(counters=ChannelCounters(sent=9))}}, {}),
        ({"enable_seq": 2}, {"enable_seq": 1}),
    ],
)
def test_rates_when_another_mount_reuses_the_number_count_from_zero(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    found = rates(replace(BEFORE, **before), replace(AFTER, **after))
    assert found.total.counters == AFTER.total
    assert {row.opcode: row.per_second for row in found.opcodes} == {"getattr": 2, "lookup": 55}


def test_rates_when_only_times_were_not_read_are_those_of_one_mount() -> None:
    path = PathCounters(requests=5, ns=900, timed=3, latency=(3, *[0] * 105))
    before = replace(AFTER, taken_ns=1_000_000_000, paths={"cache": path})
    after = replace(
        AFTER,
        timing=False,
        opcodes={name: counters.untimed() for name, counters in AFTER.opcodes.items()},
        paths={"cache": path.untimed()},
    )
    found = rates(before, after)
    assert (found.total.counters, found.paths) == (Counters(), ())
