# SPDX-License-Identifier: LGPL-2.1-or-later
"""The contents of the data cache, file by file, without a kernel."""

from __future__ import annotations

import json
import mmap
from collections import Counter
from pathlib import Path

import pytest

from efuse import bpf
from efuse.bpf.maps import Tags
from efuse.bpf.spec import MapSpec
from efuse.bpf.values import TAG_BYTES, EntryKey, FileUse, Geometry
from efuse.cli.main import main
from efuse.stats import files
from efuse.stats.files import DataCacheUsage, FileCache, since
from tests.unit.fake_sysfs import FakeSysfs

CACHE = DataCacheUsage(
    64, 5, 2, (FileCache(7, "a/b", 4, hits=30, misses=10), FileCache(9, None, 1, misses=1))
)


def _tag(nodeid: int, block: int) -> bytes:
    head = (0).to_bytes(8, "little") + nodeid.to_bytes(8, "little") + block.to_bytes(8, "little")
    return head.ljust(TAG_BYTES, b"\0")


def test_blocks_are_counted_by_nodeid_through_the_mapping(tmp_path: Path) -> None:
    ways = [_tag(7, 0), _tag(0, 5), _tag(9, 1), _tag(7, 3)]
    raw = b"".join([*ways, *[_tag(0, 0)] * 4, *[_tag(0, 0)] * 7, _tag(1 << 60, 2)])
    path = tmp_path / "tags"
    path.write_bytes(raw.ljust(mmap.PAGESIZE, b"\0"))
    with path.open("rb") as file:
        tags = Tags(file.fileno(), "tags", MapSpec(2, 4, 512, 2, 1024))
        assert tags.held() == Counter({7: 2, 9: 1, 1 << 60: 1})


def test_geometry_and_use_are_as_in_the_header() -> None:
    assert Geometry(512, 0x1122334455667788).encode().hex() == "00020000000000008877665544332211"
    assert Geometry.decode(Geometry(3, 4).encode()) == Geometry(3, 4)
    assert FileUse(1, 2).encode().hex() == "01000000000000000200000000000000"
    assert FileUse.decode(FileUse(5, 6).encode()) == FileUse(5, 6)


def _paths(*names: tuple[int, bytes, int, int]) -> files._Paths:
    return files._Paths(
        {
            EntryKey(parent, name): bpf.Entry(nodeid, stamp=bpf.Stamp(epoch, 0))
            for parent, name, nodeid, epoch in names
        }
    )


def test_path_is_made_of_the_names_up_to_the_root() -> None:
    paths = _paths((1, b"d", 5, 1), (5, b"e", 6, 1), (6, b"\xff", 7, 1), (1, b"gone", 0, 9))
    assert paths.of(7) == "d/e/\udcff"
    assert paths.of(5) == "d"
    assert paths.of(8) is None
    assert paths.of(1) == ""


def test_path_is_that_of_the_name_learned_last() -> None:
    paths = _paths((1, b"old", 5, 3), (1, b"new", 5, 4), (1, b"older", 5, 1))
    assert paths.of(5) == "new"


def test_names_in_a_cycle_are_no_path() -> None:
    paths = _paths((5, b"a", 6, 1), (6, b"b", 5, 1), (6, b"f", 7, 1))
    assert paths.of(7) is None


def test_hits_since_a_moment_are_the_difference() -> None:
    later = DataCacheUsage(
        64,
        6,
        3,
        (
            FileCache(7, "a/b", 4, hits=35, misses=10),
            FileCache(9, "c", 1, hits=2, misses=0),
            FileCache(11, None, 1, hits=1, misses=1),
        ),
    )
    assert since(CACHE, later) == DataCacheUsage(
        64,
        6,
        3,
        (
            FileCache(7, "a/b", 4, hits=5, misses=0),
            FileCache(9, "c", 1, hits=2, misses=0),
            FileCache(11, None, 1, hits=1, misses=1),
        ),
    )


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSysfs:
    tree = FakeSysfs(tmp_path)
    tree.everywhere(monkeypatch)
    tree.add(41, "/mnt/a")
    monkeypatch.setattr("efuse.cli.maps.watch", lambda number: CACHE)
    return tree


def _efuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("sysfs")
def test_maps_files_lists_blocks_hits_and_misses_of_each_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = _efuse(capsys, "maps", "files", "/mnt/a", "--most", "1").splitlines()
    assert lines[0] == "data cache: 5 of 64 blocks, 7.8% full, 2 evicted"
    assert lines[1].split() == ["FILE", "BLOCKS", "HITS", "MISSES", "HIT"]
    assert lines[2].split() == ["a/b", "4", "30", "10", "75.0%"]
    assert lines[3] == "and 1 more: --most 2"
    assert "nodeid 9" in _efuse(capsys, "maps", "files", "41")


@pytest.mark.usefixtures("sysfs")
def test_maps_files_json_has_blocks_hits_and_misses_of_each_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = json.loads(_efuse(capsys, "maps", "files", "/mnt/a", "--json"))
    assert output["files"][0] == {
        "nodeid": 7,
        "path": "a/b",
        "blocks": 4,
        "hits": 30,
        "misses": 10,
        "hit_ratio": 0.75,
    }
    assert (output["capacity"], output["used"], output["evicted"]) == (64, 5, 2)


@pytest.mark.usefixtures("sysfs")
def test_files_for_some_seconds_are_asked_for_again_before_counting_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("efuse.cli.maps.pause", pauses.append)
    out = _efuse(capsys, "maps", "files", "/mnt/a", "--seconds", "12", "--json")
    assert pauses == [5, 5, 2]
    assert max(pauses) < files.WATCHED_S
    assert [f["hits"] for f in json.loads(out)["files"]] == [0, 0]
