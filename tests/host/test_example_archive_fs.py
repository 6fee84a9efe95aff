# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/examples/archive_fs: the mount shows exactly the content of the archive."""

from __future__ import annotations

import errno
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples import TREE, make_database, make_tree, pack, running, walk


@pytest.fixture
def mounted(place: Path, eventually: Any) -> Iterator[Path]:
    (place / "source").mkdir()
    make_tree(place / "source")
    make_database(place / "source", place / "db")
    mountpoint = place / "mnt"
    script = "archive_fs/archive_fs.py"
    with running(script, mountpoint, eventually, place / "db", mountpoint):
        yield mountpoint


def test_mounted_tree_equals_the_packed_tree(mounted: Path, place: Path) -> None:
    for _ in range(2):
        assert walk(mounted) == walk(place / "source")
    assert (mounted / "large").stat().st_mtime == 1_000_000_000


def test_read_of_any_part_of_a_file_returns_its_bytes(mounted: Path) -> None:
    with (mounted / "large").open("rb", buffering=0) as file:
        for offset in (0, 1, 4095, 131_072, 299_999, 300_000):
            file.seek(offset)
            assert file.read(5000) == TREE["large"][offset : offset + 5000]


def test_write_to_the_archive_fails(mounted: Path) -> None:
    assert not (mounted / "other").exists()
    with pytest.raises(OSError) as caught:
        (mounted / "run").write_bytes(b"x")
    assert caught.value.errno in (errno.EROFS, errno.EACCES)


def test_archive_without_directory_entries_shows_directories(place: Path, eventually: Any) -> None:
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w:xz") as archive:
            member = tarfile.TarInfo("x/y/z")
            member.size = 4
            archive.addfile(member, io.BytesIO(b"data"))
        pack(file.getvalue(), place / "db")
    mountpoint = place / "mnt"
    with running("archive_fs/archive_fs.py", mountpoint, eventually, place / "db", mountpoint):
        assert (mountpoint / "x/y/z").read_bytes() == b"data"
        assert (mountpoint / "x/y").is_dir()


def test_members_out_of_the_root_and_their_links_are_left_out(place: Path, eventually: Any) -> None:
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name in ("..", "/..", "../up"):
                member = tarfile.TarInfo(name)
                member.type = tarfile.REGTYPE if name == "../up" else tarfile.DIRTYPE
                archive.addfile(member)
            for name, target in (("up", "../up"), ("device", "null")):
                if name == "device":
                    node = tarfile.TarInfo(target)
                    node.type = tarfile.CHRTYPE
                    archive.addfile(node)
                member = tarfile.TarInfo(name)
                member.type, member.linkname = tarfile.LNKTYPE, target
                archive.addfile(member)
            for name, target in (("f", ""), ("g", "f")):
                member = tarfile.TarInfo(name)
                member.type, member.linkname = (
                    (tarfile.LNKTYPE, target) if target else (tarfile.REGTYPE, "")
                )
                member.size = 0 if target else 4
                archive.addfile(member, io.BytesIO(b"data"))
        pack(file.getvalue(), place / "db")
    mountpoint = place / "mnt"
    with running("archive_fs/archive_fs.py", mountpoint, eventually, place / "db", mountpoint):
        assert sorted(path.name for path in mountpoint.iterdir()) == ["f", "g"]
        assert (mountpoint / "g").read_bytes() == b"data"
