# SPDX-License-Identifier: LGPL-2.1-or-later
"""The example in C, ``passthrough_backing``: the kernel reads and writes its files."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.bench.programs import built
from efuse.control import Connection, find
from tests.guest.support.forked import Beside
from tests.guest.support.shell import run

_SIZES = (0, 1, 4095, 4096, 4097, 100_000, 1 << 20, (3 << 20) + 5)


@pytest.fixture(scope="module")
def program() -> Path:
    return built("passthrough_backing")


@contextlib.contextmanager
def _mounted(program: Path, lower: Path, mountpoint: Path) -> Iterator[Connection]:
    """Mount *lower* by ``efuse run`` with the daemon in the foreground."""
    daemon = Beside("run", "--require", "--", program, "-f", lower, mountpoint)
    output = daemon.err.readline()
    assert output.startswith(f"{mountpoint}: eFuse"), output + daemon.err.read()
    try:
        yield Connection(find(mountpoint).connection)
    finally:
        run("umount", mountpoint)
        status, *_ = daemon.ended()
    assert status == 0


def _count(connection: Connection, file: str, name: str) -> int:
    return connection.counts(file)[name]


def _bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_files_are_read_and_written_without_the_daemon(
    program: Path, lower: Path, mountpoint: Path
) -> None:
    for size in _SIZES:
        (lower / f"old{size}").write_bytes(_bytes(size))
    with _mounted(program, lower, mountpoint) as connection:
        for size in _SIZES:
            assert (mountpoint / f"old{size}").read_bytes() == _bytes(size)
            (mountpoint / f"new{size}").write_bytes(_bytes(size))
            assert (lower / f"new{size}").read_bytes() == _bytes(size)
            with (mountpoint / f"old{size}").open("r+b") as file:
                file.seek(size // 2)
                file.write(b"changed")
            assert (lower / f"old{size}").read_bytes()[size // 2 :][:7] == b"changed"
            assert (mountpoint / f"old{size}").read_bytes() == (lower / f"old{size}").read_bytes()
        assert _count(connection, "paths/direct", "requests") >= 2 * len(_SIZES)
        assert _count(connection, "stats/read", "daemon") == 0
        assert _count(connection, "stats/write", "daemon") == 0


def test_file_opened_for_reading_can_still_be_executed(
    program: Path, lower: Path, mountpoint: Path
) -> None:
    (lower / "tool").write_text("#!/bin/sh\necho ran\n")
    (lower / "tool").chmod(0o755)
    with _mounted(program, lower, mountpoint):
        assert (mountpoint / "tool").read_text().endswith("ran\n")
        assert run(lower / "tool").stdout == "ran\n"
        assert run(mountpoint / "tool").stdout == "ran\n"


def _change_names(root: Path) -> None:
    """Do at least one of each operation that the example implements."""
    (root / "dir").mkdir()
    (root / "dir" / "a").write_bytes(b"a" * 10_000)
    os.rename(root / "dir" / "a", root / "b")
    os.link(root / "b", root / "dir" / "c")
    os.symlink("b", root / "link")
    assert os.readlink(root / "link") == "b"
    os.truncate(root / "b", 5)
    assert (root / "dir" / "c").read_bytes() == b"aaaaa"
    os.truncate(root / "b", 7)
    assert (root / "dir" / "c").read_bytes() == b"aaaaa\0\0"
    os.chmod(root / "b", 0o640)
    os.chown(root / "b", 12, 34)
    os.utime(root / "b", ns=(10**18, 2 * 10**18))
    os.setxattr(root / "b", "user.name", b"value")
    assert os.getxattr(root / "b", "user.name") == b"value"
    for number in range(300):
        (root / "dir" / f"many{number}").touch()
    assert len(os.listdir(root / "dir")) == 301
    with open(root / "b", "ab") as file:
        file.write(b"more")
        os.fsync(file.fileno())
    os.unlink(root / "b")
    assert (root / "dir" / "c").read_bytes() == b"aaaaa\0\0more"
    for path in (root / "dir").glob("many*"):
        path.unlink()
    assert os.statvfs(root).f_namemax == 255


def _listing(root: Path) -> list[tuple[object, ...]]:
    def facts(path: Path) -> tuple[object, ...]:
        st = path.lstat()
        return (
            str(path.relative_to(root)),
            st.st_mode,
            st.st_nlink,
            st.st_uid,
            st.st_gid,
            st.st_ino,
        )

    return sorted(facts(path) for path in root.rglob("*"))


def test_names_and_attributes_equal_the_lower_ones(
    program: Path, lower: Path, mountpoint: Path
) -> None:
    with _mounted(program, lower, mountpoint):
        _change_names(mountpoint)
        assert _listing(mountpoint) == _listing(lower)
        assert {path.name for path in lower.rglob("*")} == {"dir", "c", "link"}


def test_example_on_plain_fuse_reads_and_writes_the_lower_files(
    program: Path, lower: Path, mountpoint: Path
) -> None:
    run(program, lower, mountpoint)  # It returns when mounted, and goes on in the background.
    try:
        _change_names(mountpoint)
        assert _listing(mountpoint) == _listing(lower)
        for size in _SIZES:
            (mountpoint / f"new{size}").write_bytes(_bytes(size))
            assert (mountpoint / f"new{size}").read_bytes() == _bytes(size)
            assert (lower / f"new{size}").read_bytes() == _bytes(size)
    finally:
        run("umount", mountpoint)
