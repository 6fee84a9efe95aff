# SPDX-License-Identifier: LGPL-2.1-or-later
"""On local file systems a name leads to a known inode without a new descriptor of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pyfuse3
import pytest
import trio

import efuse
from efuse.fs.passthrough import inodes as inodes_module
from efuse.fs.passthrough import mounts as mounts_module
from efuse.fs.passthrough.inodes import Inodes, Node
from efuse.fs.passthrough.syscalls import DirectoryEntry, getdents, status

_EXT4, _FUSE, _NFS, _OVERLAY = 0xEF53, 0x65735546, 0x6969, 0x794C7630


def _find(table: Inodes, name: bytes) -> Node:
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=table.fd(table.root))
    return table.adopt(table.root, name, fd)[0]


def _listed(table: Inodes, name: bytes) -> DirectoryEntry:
    fd = os.open(b"/proc/self/fd/%d" % table.fd(table.root), os.O_RDONLY)
    entries = {entry[2]: entry for entry in getdents(fd)}
    os.close(fd)
    return entries[name]


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: _EXT4)


@pytest.mark.usefixtures("local")
def test_listed_entry_leads_to_its_node_without_a_descriptor(tmp_path: Path) -> None:
    table = Inodes(str(tmp_path), 32)
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "directory").mkdir()
    (tmp_path / "symlink").symlink_to("file")
    for name in (b"file", b"directory", b"symlink"):
        entry = _listed(table, name)
        assert table.listed(table.root, table.root.fd, entry) is None
        node = _find(table, name)
        before = len(os.listdir("/proc/self/fd"))
        found = table.listed(table.root, table.root.fd, entry)
        assert found is not None
        assert found[0] is node
        assert found[1][:5] == status(node.fd)[:5]
        assert len(os.listdir("/proc/self/fd")) == before
    table.close()


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("by", ["a file", "a directory", "nothing", "a mount"])
def test_listed_entry_whose_name_was_replaced_leads_to_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    table = Inodes(str(tmp_path), 32)
    (tmp_path / "a").touch()
    node = _find(table, b"a")
    entry = _listed(table, b"a")
    if by == "a mount":
        monkeypatch.setattr(
            inodes_module, "status", lambda *of: status(*of)._replace(mount=status(*of).mount + 1)
        )
    else:
        (tmp_path / "a").rename(tmp_path / "b")
    if by == "a file":
        (tmp_path / "a").touch()
    if by == "a directory":
        (tmp_path / "a").mkdir()
    assert table.listed(table.root, table.root.fd, entry) is None
    assert (node.parent, node.name) == (table.root, b"a")
    table.close()


@pytest.mark.parametrize("kind", [_FUSE, _NFS, _OVERLAY])
def test_listed_entry_of_another_file_system_is_looked_up_by_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: kind)
    table = Inodes(str(tmp_path), 32)
    (tmp_path / "a").touch()
    _find(table, b"a")
    assert table.listed(table.root, table.root.fd, _listed(table, b"a")) is None
    table.close()


@pytest.mark.usefixtures("local")
def test_listing_of_known_inodes_opens_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"data")
    replied: list[tuple[bytes, int, int]] = []

    def reply(token: object, name: bytes, attr: pyfuse3.EntryAttributes, position: int) -> bool:
        replied.append((name, attr.st_ino, attr.st_size))
        return True

    monkeypatch.setattr(pyfuse3, "readdir_reply", reply)
    fs = efuse.Passthrough(tmp_path)
    fs.efuse.mount_options = frozenset({"default_permissions"})
    fs.init()
    token = cast(pyfuse3.ReaddirToken, None)
    context = cast(pyfuse3.RequestContext, None)

    async def use() -> None:
        handle = await fs.opendir(1, context)
        await fs.readdir(handle, 0, token)

        def fails(path: bytes, *_: object, **__: object) -> int:
            raise AssertionError(f"{path!r} is opened")

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", fails)
            await fs.readdir(handle, 0, token)
        await fs.releasedir(handle)

    trio.run(use)
    found = (tmp_path / "a").stat()
    assert [entry for entry in replied if entry[0] == b"a"] == 2 * [(b"a", found.st_ino, 4)]
    assert list(fs.lookups.values()) == [2]
    fs.close()


@pytest.mark.usefixtures("local")
def test_name_leads_to_its_node_without_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Inodes(str(tmp_path), 32)
    (tmp_path / "a").touch()
    (tmp_path / "other").touch()
    node = _find(table, b"a")

    def fails(path: bytes, *_: object, **__: object) -> int:
        raise AssertionError(f"{path!r} is opened")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        assert table.named(table.root, b"a") is node
        assert table.named(table.root, b"other") is None
        assert table.named(table.root, b"absent") is None
    (tmp_path / "other").rename(tmp_path / "a")
    assert table.named(table.root, b"a") is None
    table.close()


@pytest.mark.usefixtures("local")
def test_name_of_a_node_that_was_put_aside_leads_to_it(tmp_path: Path) -> None:
    table = Inodes(str(tmp_path), 32)
    for number in range(40):
        (tmp_path / str(number)).touch()
    nodes = [_find(table, b"%d" % number) for number in range(40)]
    assert nodes[0].fd < 0
    assert table.named(table.root, b"0") is nodes[0]
    (tmp_path / "1").unlink()
    (tmp_path / "1").mkdir()
    assert table.named(table.root, b"1") is None
    table.close()
