# SPDX-License-Identifier: LGPL-2.1-or-later
"""Paths in samples and rates: shares, quantiles from classes, predictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from efuse.control import Connection
from efuse.errors import ControlError
from efuse.stats import PathCounters, Sample, rates, read
from efuse.stats.paths import LATENCIES
from tests.unit.fake_sysfs import FakeSysfs


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def latency(**numbers: int) -> tuple[int, ...]:
    """Return classes from arguments ``cN=requests``."""
    found = [0] * LATENCIES
    for name, number in numbers.items():
        found[int(name[1:])] = number
    return tuple(found)


def test_rates_of_paths_are_shares_and_quantiles() -> None:
    before = Sample(41, 0, paths={"cache": PathCounters(requests=10, bytes=40960)})
    after = Sample(
        41,
        2_000_000_000,
        paths={
            "daemon": PathCounters(),
            "cache": PathCounters(requests=40, bytes=163840, latency=latency(c9=30)),
            "direct": PathCounters(
                requests=10,
                chosen=10,
                predicted=4,
                predicted_ns=4000,
                actual_ns=8000,
                error_ns=6000,
                latency=latency(c13=9, c105=1),
            ),
        },
    )
    cache, direct = rates(before, after).paths
    assert (cache.path, cache.share, cache.per_second) == ("cache", 0.75, 15)
    assert cache.bytes_per_second == 61440
    # Class 9 is 1024 to 1280 ns.
    assert (cache.p50_ns, cache.p99_ns) == (1152, pytest.approx(1277.4, abs=0.1))
    assert (cache.predicted_ns, cache.error_ratio) == (None, None)
    assert (direct.path, direct.share) == ("direct", 0.25)
    assert direct.p99_ns == 2**34
    assert (direct.predicted_ns, direct.actual_ns, direct.error_ratio) == (1000, 2000, 0.75)


@pytest.mark.parametrize(
    ("index", "first", "last"),
    [(0, 0, 256), (1, 256, 320), (4, 448, 512), (5, 512, 640), (104, 7 * 2**31, 2**34)],
)
def test_latency_classes_have_the_documented_bounds(index: int, first: int, last: int) -> None:
    one = PathCounters(latency=latency(**{f"c{index}": 1}))
    assert one.quantile_ns(1e-12) == pytest.approx(first, abs=1)
    assert one.quantile_ns(1) == last


def test_quantile_without_times_is_none() -> None:
    assert PathCounters().quantile_ns(0.5) is None


def test_paths_are_read_and_times_only_if_wanted(sysfs: FakeSysfs) -> None:
    sysfs.add(41)
    sysfs.count_path(41, "direct", {3: 5}, requests=7, ns=900, timed=5, predicted=2)
    connection = Connection(41, root=sysfs.root)
    direct = read(connection).paths["direct"]
    assert direct == PathCounters(requests=7, ns=900, timed=5, predicted=2, latency=latency(c3=5))
    untimed = read(connection, timing=False).paths["direct"]
    assert untimed == PathCounters(requests=7, predicted=2)


def test_malformed_latency_of_a_path_fails(sysfs: FakeSysfs) -> None:
    sysfs.add(41)
    sysfs.drop_line(41, "paths/cache", "latency")
    with (sysfs.root / "connections/41/paths/cache").open("a") as file:
        file.write("latency 1 2 three\n")
    with pytest.raises(ControlError, match="does not hold 106 numbers"):
        read(Connection(41, root=sysfs.root))
