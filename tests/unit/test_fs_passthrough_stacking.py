# SPDX-License-Identifier: LGPL-2.1-or-later
"""How deep a pass-through counts as stacked."""

from __future__ import annotations

from pathlib import Path

import pytest

import efuse
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


def test_mount_whose_files_the_daemon_reads_is_not_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(self: efuse.Passthrough, fh: int, off: int, size: int) -> bytes:
        return b""

    monkeypatch.setattr(stacking, "file_system_type", lambda fd: OVERLAY)
    made = type("Reads", (efuse.Passthrough,), {"read": read})(tmp_path)
    assert made.efuse_stack_depth == 1
    made.close()
