# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that are read repeatedly."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from efuse.control import KeptFiles
from efuse.errors import ControlError
from efuse.stats import read_all
from tests.unit.fake_sysfs import FakeSysfs


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(f"{name}\n")
    return tmp_path


def opened(directory: Path) -> set[str]:
    """Return the names of a directory's files that this process has open."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    targets = [Path(os.readlink(link)) for link in links if link.is_symlink()]
    return {path.name for path in targets if path.parent == directory}


def test_kept_file_stays_open_and_returns_current_content(directory: Path) -> None:
    with KeptFiles() as files:
        assert files.read(directory, ["a", "b"]) == ["a", "b"]
        assert opened(directory) == {"a", "b"}
        (directory / "b").write_text("another\n")
        assert files.read(directory, ["b", "c", "a"]) == ["another", "c", "a"]
        assert opened(directory) == {"a", "b", "c"}
    assert opened(directory) == set()
    files.close()


def test_file_above_the_limit_is_read_without_being_kept(directory: Path) -> None:
    with KeptFiles(most=2) as files:
        for _ in range(2):
            assert files.read(directory, ["a", "b", "c"]) == ["a", "b", "c"]
            assert opened(directory) == {"a", "b"}


def test_a_file_that_is_not_there_fails(directory: Path) -> None:
    with KeptFiles() as files, pytest.raises(ControlError, match=r"/none: .* \(ENOENT\)"):
        files.read(directory, ["a", "none"])


def test_kept_file_of_an_ended_mount_is_opened_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading an open file of sysfs fails with ENODEV after its directory is removed."""
    with KeptFiles() as files:
        files.read(directory, ["a"])

        def gone(descriptor: int, size: int, offset: int) -> bytes:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

        with monkeypatch.context() as patch:
            patch.setattr("os.pread", gone)
            assert files.read(directory, ["a"]) == ["a"]
            assert opened(directory) == set()
        assert files.read(directory, ["a"]) == ["a"]
        assert opened(directory) == {"a"}


def test_samples_are_the_same_with_and_without_kept_files(memory_path: Path) -> None:
    sysfs = FakeSysfs(memory_path)
    sysfs.add(41, "/mnt/a")
    with KeptFiles() as files:
        for requests in (1, 2):
            sysfs.count(41, "lookup", requests=requests, hits=1, daemon=1)
            sysfs.count_path(41, "direct", {3: 1}, requests=requests)
            sysfs.count_channel(41, 1, sent=requests)
            places = {"root": sysfs.root, "mountinfo": sysfs.mountinfo}
            (kept,) = read_all(files=files, **places)
            (anew,) = read_all(**places)
            assert kept.opcodes["lookup"].requests == requests
            assert (kept.opcodes, kept.paths) == (anew.opcodes, anew.paths)
            assert kept.channels == anew.channels


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        (1024, 4096, (4096, 4096)),
        (1024, resource.RLIM_INFINITY, (65536, resource.RLIM_INFINITY)),
        (100_000, 200_000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_limit_of_open_files_is_raised_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: tuple[int, int] | None
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _which, limits: set_to.append(limits))
    KeptFiles().close()
    assert set_to == ([] if wanted is None else [wanted])
