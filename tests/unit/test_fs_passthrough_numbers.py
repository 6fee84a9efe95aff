# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that the pass-through confuses no files whose file systems give numbers again."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from efuse.fs.passthrough import inodes as inodes_module
from efuse.fs.passthrough import mounts as mounts_module
from efuse.fs.passthrough.inodes import Inodes, Node
from efuse.fs.passthrough.mounts import LowerMount
from efuse.fs.passthrough.syscalls import Status, getdents, status

_BTRFS, _EXT4 = 0x9123683E, 0xEF53


def _find(table: Inodes, name: bytes) -> Node:
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=table.fd(table.root))
    return table.adopt(table.root, name, fd)[0]


@pytest.mark.parametrize("by", ["lookup", "listing", "removal"])
def test_file_with_the_numbers_of_one_in_a_deleted_subvolume_has_its_own_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Btrfs gives the device number again while descriptors lead into the subvolume."""
    monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: _BTRFS)
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    deleted: set[int] = set()

    def numbered(fd: int, name: bytes = b"", **arguments: bool) -> Status:
        st = status(fd, name, **arguments)
        if st.inode in deleted:
            return st._replace(device=0, inode=257)
        return st if st.mode & 0o170000 == 0o040000 else st._replace(device=41, inode=257)

    monkeypatch.setattr(inodes_module, "status", numbered)
    table = Inodes(str(tmp_path), 32)
    one = _find(table, b"one")
    one.lookups = 1
    deleted.add(os.stat(tmp_path / "one").st_ino)
    if by == "lookup":
        assert _find(table, b"two") is not one
    elif by == "listing":
        directory = os.open(tmp_path, os.O_RDONLY)
        position, kind, name, _ = next(e for e in getdents(directory) if e[2] == b"two")
        os.close(directory)
        table.root.key = (41, *table.root.key[1:])
        assert table.listed(table.root, table.root.fd, (position, kind, name, 257)) is None
    else:
        assert table.named(table.root, b"two") is None
    table.close()


def test_mount_of_9p_is_not_local_although_it_shows_the_type_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """v9fs takes f_type from the reply of the server, which sends that of its own directory."""
    monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: _EXT4)
    table = Inodes(str(tmp_path), 32)
    row = table.root.mount.row
    assert row is not None
    fd = os.open(tmp_path, os.O_PATH)
    mount = LowerMount(row.mount_id, fd, dataclasses.replace(row, fstype="9p"))
    assert not mount.is_local
    mount.close()
    table.close()
