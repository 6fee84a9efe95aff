# SPDX-License-Identifier: LGPL-2.1-or-later
"""The stacking depth of a pass-through."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import efuse
from efuse.control.mounts import parse
from efuse.fs.passthrough import mounts as mounts_module
from efuse.fs.passthrough import stacking
from efuse.fs.passthrough.stacking import below
from efuse.fs.passthrough.syscalls import status

OVERLAY, ECRYPTFS, FUSE, EXT4, TMPFS = 0x794C7630, 0xF15F, 0x65735546, 0xEF53, 0x01021994


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the mounts with ``mounted((type, device, path), ..., kind=...)``.

    *tmp_path* is on the first of them, whose file system has the type *kind*.
    """

    def say(*mounts: tuple[str, str, Path], kind: int) -> None:
        first = os.open(tmp_path, os.O_PATH)
        numbers = itertools.chain([status(first).mount], itertools.count(10**9))
        os.close(first)
        lines = [
            f"{number} 1 {device} / {path} rw - {fstype} x rw\n"
            for number, (fstype, device, path) in zip(numbers, mounts, strict=False)
        ]
        table = parse("".join(lines))
        monkeypatch.setattr(mounts_module, "read_table", lambda mountinfo: table)
        monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: kind)

    return say


@pytest.mark.parametrize(
    ("kind", "on_efuse", "depth"),
    [
        (OVERLAY, False, 2),
        (ECRYPTFS, False, 2),
        (FUSE, True, 2),
        (FUSE, False, 1),
        (EXT4, False, 1),
        (TMPFS, False, 1),
    ],
)
def test_stack_depth_is_one_above_that_of_the_source(
    tmp_path: Path, mounted: Callable[..., None], kind: int, on_efuse: bool, depth: int
) -> None:
    mounted(("efuse" if on_efuse else "x", "0:50", tmp_path), kind=kind)
    made = efuse.Passthrough(tmp_path)
    assert made.efuse_stack_depth == depth
    made.close()


@pytest.mark.parametrize(
    ("kind", "whole"), [(OVERLAY, False), (FUSE, False), (EXT4, True), (TMPFS, True)]
)
def test_nodeid_per_file_is_promised_if_inode_numbers_identify_files(
    tmp_path: Path, mounted: Callable[..., None], kind: int, whole: bool
) -> None:
    mounted(("x", "0:50", tmp_path), kind=kind)
    made = efuse.Passthrough(tmp_path)
    assert made.efuse_options.nodeid_per_file is whole
    made.close()


@pytest.mark.parametrize(
    ("fstype", "whole"), [("fuse.bindfs", False), ("virtiofs", False), ("ext4", True)]
)
@pytest.mark.parametrize("where", ["below", "beside"])
def test_nodeid_per_file_is_not_promised_with_a_fuse_mount_below(
    tmp_path: Path, mounted: Callable[..., None], fstype: str, whole: bool, where: str
) -> None:
    source, place = tmp_path / "source", "source/m" if where == "below" else "source-m"
    source.mkdir()
    mounted(("ext4", "0:49", tmp_path), (fstype, "0:50", tmp_path / place), kind=EXT4)
    made = efuse.Passthrough(source)
    assert made.efuse_options.nodeid_per_file is (whole or where == "beside")
    made.close()


@pytest.mark.parametrize("covered", [False, True])
def test_file_system_that_is_mounted_twice_below_ends_promises(
    tmp_path: Path,
    mounted: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    covered: bool,
) -> None:
    """A file can be changed through either mount, and a directory has one inode in each."""
    places = (tmp_path, tmp_path) if covered else (tmp_path / "one", tmp_path / "two")
    for devices, whole in ((("0:50", "0:51"), True), (("0:50", "0:50"), False)):
        mounted(
            ("ext4", "0:49", tmp_path),
            *(("ext4", device, place) for device, place in zip(devices, places, strict=True)),
            kind=EXT4,
        )
        made = efuse.Passthrough(tmp_path, consistency="exclusive")
        whole |= covered
        assert made.efuse_options.nodeid_per_file is whole
        assert made.efuse_options.consistency == ("exclusive" if whole else "ttl")
        made.close()
    assert len(caplog.records) == (not covered)


def test_stack_depth_is_1_if_the_daemon_reads_the_files(
    tmp_path: Path, mounted: Callable[..., None]
) -> None:
    async def read(self: efuse.Passthrough, fh: int, off: int, size: int) -> bytes:
        return b""

    mounted(("overlay", "0:50", tmp_path), kind=OVERLAY)
    made = type("Reads", (efuse.Passthrough,), {"read": read})(tmp_path)
    assert made.efuse_stack_depth == 1
    made.close()


@pytest.mark.parametrize(
    ("directory", "found"),
    [("/", [1, 2, 3, 4]), ("/a", [1, 3, 4]), ("/a/b", [1, 4]), ("/a/b/c", [1]), ("/ab", [1])],
)
def test_mounts_below_a_directory_are_those_within_it(directory: str, found: list[int]) -> None:
    places = ["/", "/ab", "/a/b", "/a/b/c"]
    lines = [
        f"{number} 1 0:{number} / {place} rw - tmpfs x rw\n"
        for number, place in enumerate(places, 1)
    ]
    table = parse("".join(lines))
    assert [mount.mount_id for mount in below(directory, 1, table)] == found
    without = below(directory, 1, table, own=table[-1].connection)
    assert [mount.mount_id for mount in without] == [number for number in found if number != 4]


def test_local_file_systems_keep_numbers_and_handles_and_join_hard_links() -> None:
    kinds = stacking._LOCAL
    assert {EXT4, TMPFS} <= kinds
    for kind in kinds:
        assert stacking.is_local(kind)
        assert stacking.keeps_numbers(kind)
        assert not stacking.forgets_handles(kind)
        assert not stacking.parts_hard_links(kind)
    for kind in (OVERLAY, ECRYPTFS, FUSE, *stacking._GIVES_NUMBERS_AGAIN):
        assert not stacking.is_local(kind)
