# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test the file systems of docs/examples on eFuse: what they publish or map spares requests."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse.control import Connection
from tests import examples
from tests.examples import (
    LINK,
    TARGET,
    TREE,
    git,
    make_database,
    make_repository,
    make_tree,
    running,
    text,
    walk,
)
from tests.guest.support.file_data import read_direct

CHUNK = 64 << 10
WATCHED = str(Path(examples.__file__).with_name("watched_remote.py"))


class On:
    """An example that is mounted on eFuse."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = Connection.at(path)
        assert self.connection.state == "attached"

    def asked(self) -> dict[str, int]:
        """Return the number of requests to the daemon by opcode, without those that release."""
        names = self.connection.opcodes()
        found = {name: self.connection.counts(f"stats/{name}")["daemon"] for name in names}
        return {name: count for name, count in found.items() if not name.startswith("release")}

    def direct(self) -> int:
        """Return the number of requests that the direct path answered."""
        return self.connection.counts("paths/direct")["requests"]

    @contextlib.contextmanager
    def asks_nothing(self) -> Iterator[None]:
        before = self.asked()
        yield
        assert self.asked() == before


Run = Callable[..., contextlib.AbstractContextManager[On]]
Packed = tuple[Path, dict[str, Any]]
Committed = tuple[Path, str]


@pytest.fixture
def run(mountpoint: Path, eventually: Any) -> Run:
    """Return ``run(script, *arguments, then=())``, which mounts an example.

    *arguments* stand before the mount point, and *then* behind it.
    """

    @contextlib.contextmanager
    def run(script: str, *arguments: object, then: tuple[object, ...] = ()) -> Iterator[On]:
        with running(script, mountpoint, eventually, *arguments, mountpoint, *then):
            yield On(mountpoint)

    return run


@pytest.fixture
def source(lower: Path) -> Path:
    (lower / "source").mkdir()
    make_tree(lower / "source")
    return lower / "source"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Return a database of archive_fs, and what it contains, as `walk` returns it."""
    base = tmp_path_factory.mktemp("packed")
    (base / "source").mkdir()
    make_tree(base / "source")
    make_database(base / "source", base / "db")
    return base / "db", walk(base / "source")


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Committed:
    """Return a repository, which no test changes, and its first commit."""
    repository = tmp_path_factory.mktemp("committed") / "repository"
    return repository, make_repository(repository)


def test_archive_publishes_all_names_before_the_first_request(run: Run, packed: Packed) -> None:
    database, expected = packed
    with run("archive_fs/archive_fs.py", database) as one:
        before = one.asked()
        for name, (mode, _, _) in expected.items():
            assert os.lstat(one.path / name).st_mode == mode
        after = one.asked()
        for opcode in ("lookup", "getattr"):
            assert after[opcode] == before[opcode], opcode


def test_archive_publishes_the_data_of_small_files(run: Run, packed: Packed) -> None:
    database, _ = packed
    with run("archive_fs/archive_fs.py", database) as one:
        one.connection.forced_path = "cache"  # This avoids probes of other paths.
        before = one.asked()["read"]
        for name in ("a/b/deep", "a/small", "run"):
            assert (one.path / name).read_bytes() == TREE[name]
        assert one.asked()["read"] == before
        assert (one.path / "large").read_bytes() == TREE["large"]
        assert one.asked()["read"] > before


def test_warm_archive_sends_no_requests_to_the_daemon(run: Run, packed: Packed) -> None:
    database, expected = packed
    with run("archive_fs/archive_fs.py", database) as one:
        for _ in range(2):
            assert walk(one.path) == expected
        with one.asks_nothing():
            assert walk(one.path) == expected


def test_warm_git_tree_sends_no_requests_to_the_daemon(run: Run, committed: Committed) -> None:
    repository, first = committed
    with run("git_fs/git_fs.py", repository) as one:
        tops = (one.path / "commits" / first, one.path / "branches/main")
        cold = [walk(top.resolve()) for top in tops]
        assert cold[0]["large"][2] == TREE["large"]
        assert cold[0][LINK][2] == TARGET.encode()
        assert (cold[0]["a/small"][2], cold[1]["a/small"][2]) == (b"small\n", b"changed\n")
        assert [walk(top.resolve()) for top in tops] == cold
        with one.asks_nothing():
            assert [walk(top.resolve()) for top in tops] == cold


def test_git_shows_the_new_commit_after_its_branch_moves(
    run: Run, lower: Path, committed: Committed, eventually: Any
) -> None:
    """The kernel keeps its values for ever, so the daemon has to invalidate them."""
    repository = shutil.copytree(committed[0], lower / "repository", symlinks=True)
    with run("git_fs/git_fs.py", repository) as one:
        small = one.path / "branches/main/a/small"
        for _ in range(3):
            assert small.read_bytes() == b"changed\n"
            assert not (one.path / "branches/new").exists()
        (repository / "a/small").write_bytes(b"again\n")
        git(repository, "commit", "--quiet", "--all", "--message=Three")
        git(repository, "branch", "new")
        eventually(lambda: small.read_bytes() == b"again\n", what="main to move")
        eventually((one.path / "branches/new").exists, what="a branch to come")


def test_cached_chunks_are_read_without_the_daemon(run: Run, source: Path, lower: Path) -> None:
    data = TREE["large"]
    url = f"watched://{source}"
    with run(WATCHED, lower / "log", url, then=(lower / "cache", "--chunk", CHUNK)) as one:
        assert read_direct(str(one.path / "large"), len(data)) == data
        one.connection.forced_path = "direct"  # This avoids probes of other paths.
        asked, direct = one.asked()["read"], one.direct()
        for offset, size in ((0, len(data)), (CHUNK - 4096, 8192), (4 * CHUNK, CHUNK)):
            expected = data[offset : offset + size]
            assert read_direct(str(one.path / "large"), size, offset) == expected
        assert one.asked()["read"] == asked
        assert one.direct() > direct
        assert len((lower / "log").read_text().splitlines()) == -(-len(data) // CHUNK)


def test_chunks_of_an_earlier_version_are_not_read(run: Run, source: Path, lower: Path) -> None:
    url = f"watched://{source}"
    then = (lower / "cache", "--chunk", CHUNK, "--timeout", 3600)
    with run(WATCHED, lower / "log", url, then=then) as one:
        large = one.path / "large"
        for letter, size in (("l", 300_000), ("m", 300_000), ("s", 1000), ("g", 500_000)):
            data = text(letter, size)
            (source / "large").write_bytes(data)
            for _ in range(2):
                assert large.read_bytes() == data
                assert read_direct(str(large), size) == data


def test_open_and_fstat_query_the_remote_once(run: Run, source: Path, lower: Path) -> None:
    """A GETATTR after an OPEN gets the attributes that the OPEN has fetched."""
    url = f"watched://{source}"
    then = (lower / "cache", "--timeout", 3600)
    with run(WATCHED, lower / "log", url, then=then) as one:
        path, log = one.path / "large", lower / "log.asked"
        for size in (300_000, 1000, 500_000):
            (source / "large").write_bytes(text("o", size))
            os.stat(path)
            before, getattrs = len(log.read_text().splitlines()), one.asked()["getattr"]
            with path.open("rb") as file:
                assert os.fstat(file.fileno()).st_size == size
            assert log.read_text().splitlines()[before:] == ["large"]
            assert one.asked()["getattr"] > getattrs


def test_unchanged_remote_is_queried_once(run: Run, source: Path, lower: Path) -> None:
    (source / LINK).unlink()
    url = f"watched://{source}"
    then = (lower / "cache", "--chunk", CHUNK, "--consistency", "exclusive")
    with run(WATCHED, lower / "log", url, then=then) as one:
        cold = walk(one.path)
        assert {name: data for name, (_, _, data) in cold.items() if name in TREE} == TREE
        assert walk(one.path) == cold
        with one.asks_nothing():
            assert walk(one.path) == cold
