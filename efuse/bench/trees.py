# SPDX-License-Identifier: LGPL-2.1-or-later
"""The metadata workloads of whole trees: real programs walk, unpack and build them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tarfile
from collections.abc import Sequence
from pathlib import Path

from efuse import libefuse
from efuse.bench.workloads import TIME_NS, MetadataWorkload, write
from efuse.errors import EfuseError, reason

__all__ = ["TREES"]

_WALK = (
    "find sub* -size +2k",
    "ls -lR sub*",
    "tar c --sort=name sub*",
    "git -c safe.directory='*' --no-optional-locks status --porcelain",
)
_ARCHIVE = "sources.tar"
_BUILT = (
    "libefuse.so.0",
    "libefuse-preload.so",
    "libefuse-publish.so",
    "libefuse-python.so",
)


def _prepare_walk(directory: Path, count: int) -> None:
    """Make a tree like a source tree: about 20 files per directory, of a few KiB each."""
    for i in range(count):
        parent = directory / f"sub{i // 200:03}" / f"dir{i // 20 % 10}"
        parent.mkdir(parents=True, exist_ok=True)
        write(parent / f"source_{i:05}.c", f"int f{i}(void);\n".encode() * (1 + i % 300))
    git = ["git", "-c", "user.name=efuse", "-c", "user.email=efuse@localhost", "-C", str(directory)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "tree"], check=True)
    for path, directories, _files in os.walk(directory, topdown=False):
        for name in directories:
            os.utime(Path(path) / name, ns=(TIME_NS, TIME_NS))


def _run_walk(directory: Path, count: int, round: int) -> list[object]:
    seen: list[object] = []
    for command in _WALK:
        sort = " | sort" if command.startswith("find") else ""
        output = hashlib.sha256()
        with subprocess.Popen(
            command + sort, shell=True, cwd=directory, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout
            while block := child.stdout.read(1 << 20):
                output.update(block)
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, command)
        seen.append(output.hexdigest())
    return seen


def _python_sources() -> list[Path]:
    """Return the files of Python's standard library, which every machine with eFuse has."""
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(path for path in root.rglob("*.py") if "-packages" not in str(path))


def _prepare_untar(directory: Path, count: int) -> None:
    root = Path(sysconfig.get_path("stdlib"))
    with tarfile.open(directory / _ARCHIVE, "w") as archive:
        for path in _python_sources()[:count]:
            member = archive.gettarinfo(path.resolve(), str(path.relative_to(root)))
            with path.open("rb") as data:
                archive.addfile(member, data)


def _run_untar(directory: Path, count: int, round: int) -> list[object]:
    into = directory / f"unpacked{round}"
    into.mkdir()
    _checked(["tar", "-xf", str(directory / _ARCHIVE), "-C", str(into)])
    return [sum(len(files) for _path, _directories, files in os.walk(into))]


def _prepare_build(directory: Path, count: int) -> None:
    """Copy the sources of eFuse's C libraries. Their Makefile finds the uapi header above them."""
    *sources, uapi = libefuse.sources()
    (directory / "libefuse").mkdir()
    for path in sources:
        shutil.copy2(path, directory / "libefuse")
    include = directory / "kernel_patches/include/uapi/linux"
    include.mkdir(parents=True)
    shutil.copy2(uapi, include)


def _run_build(directory: Path, count: int, round: int) -> list[object]:
    out = directory / f"built{round}"
    out.mkdir()
    # No debugging information, which would contain the name of the directory.
    words = ["make", "-s", "-j2", "-C", str(directory / "libefuse"), f"OUT=../{out.name}"]
    _checked([*words, "CFLAGS=-O2"])
    return [hashlib.sha256((out / name).read_bytes()).hexdigest() for name in _BUILT]


def _checked(words: Sequence[str]) -> None:
    try:
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        raise EfuseError(
            f"{words[0]} cannot be run: {reason(error)}", hint=f"apt-get install {words[0]}"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise EfuseError(f"{words[0]} failed with status {done.returncode}: {last}")


_WALKED = MetadataWorkload(
    "tree-walk",
    "find -size, ls -lR, tar c, git status over a source tree",
    5000,
    "s",
    _prepare_walk,
    _run_walk,
)

TREES = {
    workload.name: workload
    for workload in (
        _WALKED,
        MetadataWorkload(
            "tree-walk-cold",
            f"{_WALKED.what}, with dentries, inodes and pages dropped",
            5000,
            "s",
            _prepare_walk,
            _run_walk,
            cold=True,
        ),
        MetadataWorkload(
            "untar",
            "tar x of Python's standard library",
            500,
            "s",
            _prepare_untar,
            _run_untar,
            room=80,
        ),
        MetadataWorkload(
            "build", "make -j2 of eFuse's C libraries", 1, "s", _prepare_build, _run_build
        ),
    )
}
"""The workloads of whole trees, by name."""
