# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/examples/fsspec_fs: correct bytes, one fetch of each chunk, and a remote that fails."""

from __future__ import annotations

import contextlib
import errno
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import examples
from tests.examples import TREE, make_tree, running, text, walk

CHUNK = 64 << 10
SCRIPT = "fsspec_fs/fsspec_fs.py"
WATCHED = str(Path(examples.__file__).with_name("watched_remote.py"))

Run = Callable[..., contextlib.AbstractContextManager[Path]]


@pytest.fixture
def source(place: Path) -> Path:
    (place / "source").mkdir()
    make_tree(place / "source")
    (place / "source/a/link").unlink()
    return place / "source"


@pytest.fixture
def watched(place: Path, source: Path, eventually: Any) -> Run:
    """Mount a remote that logs each fetch, and that a test can make unreachable."""
    mountpoint = place / "mnt"

    @contextlib.contextmanager
    def run(*arguments: object) -> Iterator[Path]:
        told = (place / "log", f"watched://{source}", mountpoint, place / "cache")
        options = ("--chunk", CHUNK, "--timeout", 0, *arguments)
        with running(WATCHED, mountpoint, eventually, *told, *options):
            yield mountpoint

    return run


def fetched(place: Path) -> list[str]:
    log = place / "log"
    return log.read_text().splitlines() if log.exists() else []


def contents(top: Path) -> dict[str, tuple[int, bytes]]:
    """Return the size and the data of each file, by name. The mount chooses the modes itself."""
    return {name: (size, data) for name, (_, size, data) in walk(top).items()}


@pytest.mark.parametrize("kind", ["file", "zip"])
def test_mount_shows_the_files_of_the_url(
    place: Path, source: Path, eventually: Any, kind: str
) -> None:
    url = f"file://{source}"
    if kind == "zip":
        url = f"zip://::file://{place}/archive.zip"
        with zipfile.ZipFile(place / "archive.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(source.rglob("*")):
                archive.write(path, path.relative_to(source))
    mountpoint = place / "mnt"
    told = (url, mountpoint, place / "cache", "--chunk", CHUNK)
    with running(SCRIPT, mountpoint, eventually, *told):
        for _ in range(2):
            assert contents(mountpoint) == contents(source)
        assert not (mountpoint / "other").exists()
        with pytest.raises(OSError) as caught:
            (mountpoint / "large").write_bytes(b"x")
        assert caught.value.errno in (errno.EROFS, errno.EACCES)


def test_reads_across_chunks_return_the_right_bytes(watched: Run) -> None:
    data = TREE["large"]
    with watched() as top:
        fd = os.open(top / "large", os.O_RDONLY)
        for offset in (CHUNK - 1, 3 * CHUNK - 5000, 0, len(data) - 10, len(data)):
            for size in (1, 10_000, 2 * CHUNK + 7):
                assert os.pread(fd, size, offset) == data[offset : offset + size]
        os.close(fd)


def test_each_chunk_is_fetched_once(watched: Run, place: Path) -> None:
    chunks = [f"large {start}" for start in range(0, len(TREE["large"]), CHUNK)]
    for _ in range(2):  # The second mount finds the chunks that the first one has fetched.
        with watched() as top:
            for _ in range(3):
                assert (top / "large").read_bytes() == TREE["large"]
                drop_pages(top / "large")
            assert sorted(fetched(place)) == sorted(chunks)


def drop_pages(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_new_version_is_fetched_again(watched: Run, place: Path, source: Path) -> None:
    with watched() as top:
        assert (top / "large").read_bytes() == TREE["large"]
        for letter, size in (("m", 300_000), ("s", 1000), ("g", 500_000)):
            (source / "large").write_bytes(text(letter, size))
            assert (top / "large").read_bytes() == text(letter, size)
        # The cache has only one version of the file.
        assert len(list((place / "cache").glob("*/*"))) == 1


def test_unreachable_remote_returns_eio_until_it_is_back(watched: Run, place: Path) -> None:
    with watched() as top:
        assert (top / "a/small").read_bytes() == TREE["a/small"]
        for trouble in ("log.down", "log.strange"):
            (place / trouble).touch()
            for path in ("large", "a/small", "nothing"):
                with pytest.raises(OSError) as caught:
                    (top / path).read_bytes()
                assert caught.value.errno == errno.EIO
            (place / trouble).unlink()
            assert (top / "large").read_bytes() == TREE["large"]
            assert not (top / "nothing").exists()


def test_damaged_chunk_is_fetched_again(watched: Run, place: Path) -> None:
    """After a power failure, a chunk may have its name but not all of its bytes."""
    with watched() as top:
        assert (top / "a/b/deep").read_bytes() == TREE["a/b/deep"]
    (chunk,) = (place / "cache").glob("*/*/*")
    chunk.write_bytes(b"")
    with watched() as top:
        assert (top / "a/b/deep").read_bytes() == TREE["a/b/deep"]
    assert fetched(place) == ["deep 0"] * 2
