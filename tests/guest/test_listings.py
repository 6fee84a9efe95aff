# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test a directory that changes while it is read: names that stay are listed exactly once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import efuse
from efuse.control import Connection
from tests.guest.support.shell import run

# The entries of these names are more than the 32 KiB that the daemon and a caller read ahead, so
# the rest is read after names were removed.
NAMES = [f"f{number:04}{'x' * (190 + number % 60)}" for number in range(200)]


@pytest.fixture
def lower_directory(request: pytest.FixtureRequest, lower: Path) -> Iterator[Path]:
    if request.param == "ext4":
        yield lower
        return
    if request.param == "tmpfs":
        run("mount", "-t", "tmpfs", "tmpfs", lower)
        yield lower
        run("umount", "--lazy", lower)
        return
    both: Path = request.getfixturevalue("overlay")
    (lower / "below/d").mkdir()
    (lower / "below/d/from_below").touch()
    yield both


def _lose_while_read(path: Path) -> list[str]:
    """List *path*, and remove every other name after some have been read."""
    seen = []
    with os.scandir(path) as entries:
        for number, entry in enumerate(entries):
            seen.append(entry.name)
            if number == 30:
                for name in NAMES[::2]:
                    (path / name).unlink()
    return seen


@pytest.mark.parametrize(
    ("lower_directory", "mode"),
    [
        ("overlay", "plain"),
        *((kind, mode) for kind in ("overlay", "ext4", "tmpfs") for mode in ("ttl", "exclusive")),
    ],
    indirect=["lower_directory"],
)
def test_listing_of_a_changing_directory_has_each_remaining_name_once(
    lower_directory: Path, mountpoint: Path, mode: str
) -> None:
    (lower_directory / "d").mkdir(exist_ok=True)
    for name in NAMES:
        (lower_directory / "d" / name).touch()
    plain = mode == "plain"
    operations = efuse.Passthrough(
        lower_directory, consistency="ttl" if plain else mode, attr_timeout=3600
    )
    with efuse.mount(operations, mountpoint, plain=plain, required=not plain) as one:
        path = mountpoint / "d"
        os.listdir(path)
        seen = _lose_while_read(path)
        assert [name for name in NAMES[1::2] if seen.count(name) != 1] == []
        assert sorted(os.listdir(path)) == sorted(os.listdir(lower_directory / "d"))
        if mode in ("ttl", "exclusive"):
            opened = _opened_by_the_kernel(Connection(one.connection or 0), path)
            assert opened == (lower_directory.name != "both")
    operations.close()


@pytest.mark.parametrize(
    ("lower_directory", "mode"),
    [("tmpfs", mode) for mode in ("plain", "ttl", "exclusive")],
    indirect=["lower_directory"],
)
def test_listing_of_tmpfs_has_no_name_twice_after_names_are_removed(
    lower_directory: Path, mountpoint: Path, mode: str
) -> None:
    """Two readers list one directory. By itself, tmpfs would start again for one of them."""
    for name in NAMES:
        (lower_directory / name).touch()
    plain = mode == "plain"
    operations = efuse.Passthrough(
        lower_directory, consistency="ttl" if plain else mode, attr_timeout=3600
    )
    with efuse.mount(operations, mountpoint, plain=plain, required=not plain):
        os.listdir(mountpoint)
        with os.scandir(mountpoint) as first, os.scandir(mountpoint) as second:
            seen = [[next(entries).name for _ in range(10)] for entries in (first, second)]
            for name in set(NAMES) - set(seen[0]):
                (mountpoint / name).unlink()
            for names, entries in zip(seen, (first, second), strict=True):
                names += [entry.name for entry in entries]
                assert len(names) == len(set(names))
    operations.close()


def _opened_by_the_kernel(connection: Connection, path: Path) -> int:
    os.listdir(path)
    before = connection.counts("stats/opendir")["hits"]
    os.listdir(path)
    return connection.counts("stats/opendir")["hits"] - before
