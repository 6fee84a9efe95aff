# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/examples/git_fs: files are what ``git show`` prints, and links follow the references."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples import LINK, TARGET, TREE, git, make_repository, running


@pytest.fixture
def repository(place: Path) -> Path:
    make_repository(place / "repository")
    return place / "repository"


@pytest.fixture
def mounted(repository: Path, place: Path, eventually: Any) -> Iterator[Path]:
    mountpoint = place / "mnt"
    with running("git_fs/git_fs.py", mountpoint, eventually, repository, mountpoint):
        yield mountpoint


def test_top_directories_list_branches_tags_and_no_commits(mounted: Path) -> None:
    assert sorted(os.listdir(mounted)) == ["branches", "commits", "tags"]
    assert sorted(os.listdir(mounted / "branches")) == ["feature", "main"]
    assert os.listdir(mounted / "branches/feature") == ["x"]
    assert sorted(os.listdir(mounted / "tags")) == ["light", "v1.0"]
    assert os.listdir(mounted / "commits") == []


@pytest.mark.parametrize(
    "place_, revision",
    [
        ("branches/main", "main"),
        ("branches/feature/x", "feature/x"),
        ("tags/light", "light"),
        ("tags/v1.0", "v1.0"),
        ("commits/{}", "main~1"),
    ],
)
def test_files_equal_the_objects_of_git(
    mounted: Path, repository: Path, place_: str, revision: str
) -> None:
    commit = git(repository, "rev-parse", f"{revision}^{{commit}}").decode()
    top = mounted / place_.format(commit)
    listed = git(repository, "ls-tree", "-r", "-z", revision).decode().split("\0")
    found = {
        str((Path(directory) / name).relative_to(top))
        for directory, _, names in os.walk(f"{top}/")
        for name in names
    }
    assert found == {line.partition("\t")[2] for line in listed if line}
    for name in found - {LINK}:
        shown = git(repository, "show", f"{revision}:{name}")
        assert (top / name).read_bytes().strip() == shown
        assert (top / name).stat().st_size == (top / name).read_bytes().__len__()
    assert os.readlink(top / LINK) == TARGET
    assert (top / LINK).read_bytes() == TREE["large"]
    assert stat.S_IMODE((top / "run").stat().st_mode) == 0o555
    assert stat.S_IMODE((top / "large").stat().st_mode) == 0o444


def test_same_blob_in_two_trees_is_one_inode(mounted: Path) -> None:
    one, two = mounted / "tags/light", mounted / "tags/v1.0"
    assert (one / "large").samefile(two / "large")
    assert not (one / "a/small").samefile(two / "a/small")


def test_name_that_is_no_commit_has_no_directory(mounted: Path, repository: Path) -> None:
    blob = git(repository, "rev-parse", "main:large").decode()
    for name in (blob, "0" * 40, "main", "abc", "x" * 40):
        assert not (mounted / "commits" / name).exists()
    with pytest.raises(OSError):
        (mounted / "branches/main/large").write_bytes(b"x")


def test_moved_branch_shows_its_new_commit(
    mounted: Path, repository: Path, eventually: Any
) -> None:
    assert (mounted / "branches/main/a/small").read_bytes() == b"changed\n"
    (repository / "a/small").write_bytes(b"again\n")
    git(repository, "commit", "--quiet", "--all", "--message=Three")
    git(repository, "branch", "--quiet", "new")
    git(repository, "branch", "--quiet", "--delete", "--force", "feature/x")
    moved = mounted / "branches/main/a/small"
    eventually(lambda: moved.read_bytes() == b"again\n", what="main to move")
    eventually((mounted / "branches/new/run").exists, what="a branch to come")
    eventually(lambda: not os.path.lexists(mounted / "branches/feature"), what="one to go")
    eventually(
        lambda: sorted(os.listdir(mounted / "branches")) == ["main", "new"], what="the listing"
    )
