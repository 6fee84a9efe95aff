# SPDX-License-Identifier: LGPL-2.1-or-later
"""How deep a pass-through counts as stacked."""

from __future__ import annotations

from pathlib import Path

import pytest

import efuse
from efuse.control.mounts import parse
from efuse.fs.passthrough import stacking

OVERLAY, ECRYPTFS, FUSE, EXT4, TMPFS = 0x794C7630, 0xF15F, 0x65735546, 0xEF53, 0x01021994


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
def test_depth_is_above_what_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, on_efuse: bool, depth: int
) -> None:
    monkeypatch.setattr(stacking, "file_system_type", lambda fd: kind)
    monkeypatch.setattr(stacking, "_is_efuse", lambda path: on_efuse)
    made = efuse.Passthrough(tmp_path)
    assert made.efuse_stack_depth == depth
    made.close()


@pytest.mark.parametrize(
    ("kind", "whole"), [(OVERLAY, False), (FUSE, False), (EXT4, True), (TMPFS, True)]
)
def test_nodeids_are_of_files_where_inode_numbers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, whole: bool
) -> None:
    monkeypatch.setattr(stacking, "file_system_type", lambda fd: kind)
    made = efuse.Passthrough(tmp_path)
    assert made.efuse_options.nodeid_per_file is whole
    made.close()


@pytest.mark.parametrize(("fstype", "whole"), [("fuse.bindfs", False), ("ext4", True)])
@pytest.mark.parametrize("where", ["below", "beside"])
def test_nodeids_are_not_of_files_where_fuse_is_mounted_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fstype: str, whole: bool, where: str
) -> None:
    source, place = tmp_path / "source", "source/m" if where == "below" else "source-m"
    source.mkdir()
    table = parse(f"5 1 0:50 / {tmp_path}/{place} rw - {fstype} x rw\n")
    monkeypatch.setattr(stacking, "all_mounts", lambda: table)
    made = efuse.Passthrough(source)
    assert made.efuse_options.nodeid_per_file is (whole or where == "beside")
    made.close()


def test_nodeids_are_not_of_files_where_two_mounts_below_are_of_one_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of them a file may be written, by the other not: it is two inodes."""
    for devices, whole in ((("0:50", "0:51"), True), (("0:50", "0:50"), False)):
        lines = [
            f"{number} 1 {device} / {tmp_path}/{number} rw - ext4 x rw\n"
            for number, device in enumerate(devices, 5)
        ]
        table = parse("".join(lines))
        monkeypatch.setattr(stacking, "all_mounts", lambda table=table: table)
        made = efuse.Passthrough(tmp_path)
        assert made.efuse_options.nodeid_per_file is whole
        made.close()


def test_mount_whose_files_the_daemon_reads_is_not_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(self: efuse.Passthrough, fh: int, off: int, size: int) -> bytes:
        return b""

    monkeypatch.setattr(stacking, "file_system_type", lambda fd: OVERLAY)
    made = type("Reads", (efuse.Passthrough,), {"read": read})(tmp_path)
    assert made.efuse_stack_depth == 1
    made.close()
