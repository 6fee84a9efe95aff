# SPDX-License-Identifier: LGPL-2.1-or-later
"""Many inodes, few descriptors, exact lookup counts, and many processes at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tree_workloads import RENAMES, TREES, walk

FILES = {False: 10_500, True: 3_000}
DESCRIPTORS = 256


def _fill(source: Path, files: int) -> None:
    for n in range(files):
        directory = source / f"{n % 40}"
        if n < 40:
            directory.mkdir()
        (directory / f"{n}").write_bytes(b"file %d" % n)


@pytest.mark.parametrize("no_file_handles", [False, True])
def test_more_inodes_than_descriptors_are_served(served: Any, no_file_handles: bool) -> None:
    mounted = served(
        arguments={"entry_timeout": 60, "attr_timeout": 60},
        descriptors=DESCRIPTORS,
        no_file_handles=no_file_handles,
    )
    _fill(mounted.source, FILES[no_file_handles])
    kept = [os.open(mounted.path / f"{n}/{n}", os.O_RDONLY) for n in range(40)]
    os.rename(mounted.path / "7", mounted.path / "8/moved")
    os.unlink(mounted.path / "9/9")
    assert walk(mounted.path, every=40) == walk(mounted.source, every=40)
    report = mounted.report()
    assert len(report["lookups"]) > FILES[no_file_handles] // 2, (
        "the kernel should hold most inodes"
    )
    assert report["open"] <= DESCRIPTORS
    # Inodes that were put aside are found again, although their files were moved.
    for n, fd in enumerate(kept):
        assert os.read(fd, 100) == b"file %d" % n
        os.close(fd)
    os.truncate(mounted.path / "8/moved/7", 2)
    assert (mounted.source / "8/moved/7").read_bytes() == b"fi"
    last = mounted.unmount()
    assert last["logged"] == []


def test_inode_replaced_below_while_its_descriptor_is_closed_is_stale(served: Any) -> None:
    mounted = served(descriptors=128, arguments={"descriptors": 32, "entry_timeout": 3600})
    _fill(mounted.source, 400)
    kept = os.open(mounted.path / "0/0", os.O_PATH)
    walk(mounted.path)
    (mounted.source / "0/0").unlink()
    (mounted.source / "0/0").write_bytes(b"another")
    with pytest.raises(OSError, match="Stale"):
        os.stat(f"/proc/self/fd/{kept}")
    os.close(kept)


def _drop_caches() -> None:
    Path("/proc/sys/vm/drop_caches").write_text("2")


def test_lookup_counts_return_to_zero(served: Any, eventually: Callable[..., Any]) -> None:
    mounted = served(arguments={"entry_timeout": 3600, "attr_timeout": 3600})
    _fill(mounted.source, 500)
    for _ in range(2):
        walk(mounted.path)
        for n in range(100):
            (mounted.path / f"new{n}").write_bytes(b"x")
            os.link(mounted.path / f"new{n}", mounted.path / f"link{n}")
            os.rename(mounted.path / f"link{n}", mounted.path / f"new{(n + 1) % 100}")
        for path in mounted.path.glob("new*"):
            path.unlink()
        for path in mounted.path.glob("link*"):
            path.unlink()
        _drop_caches()

    def all_forgotten() -> bool:
        _drop_caches()
        return mounted.report()["lookups"] == {}

    eventually(all_forgotten, timeout=120, what="every lookup to be forgotten")
    assert walk(mounted.path) == walk(mounted.source)
    last = mounted.unmount()
    assert last["logged"] == [], "a FORGET took back more than there was"


def test_mount_equals_the_source_after_many_parallel_renames_and_unlinks(
    served: Any, in_processes: Callable[..., list[str]]
) -> None:
    mounted = served()
    for name in ("d0", "d1"):
        (mounted.source / name).mkdir()
    in_processes(4, RENAMES, mounted.path, 150)
    assert walk(mounted.path) == walk(mounted.source)
    assert mounted.unmount()["logged"] == []


def test_processes_in_separate_trees_see_their_own_changes(
    served: Any, in_processes: Callable[..., list[str]]
) -> None:
    mounted = served(arguments={"entry_timeout": 60, "attr_timeout": 60})
    in_processes(4, TREES, mounted.path, 150)
    assert walk(mounted.path) == walk(mounted.source)
    assert mounted.unmount()["logged"] == []
