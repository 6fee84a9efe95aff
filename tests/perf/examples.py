# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the file systems of docs/examples gain by eFuse: ``python -m tests.perf.examples JSON``.

A walk reads all files in a part of Python's standard library: first with empty caches, then again.
It runs in a guest whose clock counts instructions. The JSON has the format of
``efuse bench --json``.
"""

from __future__ import annotations

import functools
import itertools
import runpy
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import efuse
from efuse.bench import Result
from efuse.bench.clock import CLOCKS
from tests.conftest import wait_for
from tests.examples import git, make_database, running, walk
from tests.perf.reports import ONE_CPU_COUNTED, Asked, in_guest, result, write_report

_INSIDE, _PLAIN = "--inside", "--plain"
_PARTS = ("asyncio", "concurrent", "email", "http", "json", "logging", "unittest")
_ROUNDS = 3
_wait_for = functools.partial(wait_for, timeout=120)


def _sources(work: Path) -> Path:
    """Copy the files that are read."""
    library = Path(sysconfig.get_path("stdlib"))
    for part in _PARTS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(library / part, work / "tree" / part, ignore=ignored)
    return work / "tree"


def _arguments(example: str, tree: Path, work: Path) -> tuple[list[str], list[str]]:
    """Make the data that *example* serves; return its arguments before and after the mountpoint."""
    if example == "archive_fs":
        make_database(tree, work / "db")
        return [str(work / "db")], []
    if example == "git_fs":
        repository = work / "repository"
        shutil.copytree(tree, repository)
        git(repository, "init", "--quiet", "--initial-branch=main")
        git(repository, "add", ".")
        git(repository, "commit", "--quiet", "--message=One")
        return [str(repository)], []
    shutil.make_archive(str(work / "tree"), "zip", tree)
    cache = tempfile.mkdtemp(dir=work)
    behind = [cache] if example == "fsspec_fs" else [cache, "--consistency", "exclusive"]
    return [f"zip://::file://{work}/tree.zip"], behind


def _seen_at(example: str, mountpoint: Path) -> Path:
    return mountpoint / "branches/main" if example == "git_fs" else mountpoint


@contextmanager
def _served(example: str, system: str, tree: Path, work: Path) -> Iterator[Path]:
    work.mkdir()
    before, behind = _arguments(example, tree, work)
    name, mountpoint = example.partition("-")[0], work / "mnt"
    script = f"{name}/{name}.py"
    through = ("-m", "tests.perf.examples", _PLAIN) if system == "fuse" else ()
    words = (*before, mountpoint, *behind)
    with running(script, mountpoint, _wait_for, *words, through=through):
        yield mountpoint


def _measured(example: str, system: str, tree: Path, work: Path) -> list[Result]:
    expected, clock = walk(tree), CLOCKS["instructions"]
    rounds: list[tuple[float, int]] = []
    with (
        _served(example, system, tree, work) as mountpoint,
        closing(Asked(mountpoint)) as asked,
    ):
        for _ in range(1 + _ROUNDS):
            requests, began = asked(), clock()
            seen = walk(_seen_at(example, mountpoint))
            rounds.append(((clock() - began) / 1e9, asked() - requests))
            assert {name: data for name, (_, _, data) in seen.items()} == {
                name: data for name, (_, _, data) in expected.items()
            }
    parts = {f"{example}-first": rounds[:1], f"{example}-again": rounds[1:]}
    return [
        result((workload, system, example), "s", "lower", part) for workload, part in parts.items()
    ]


def _inside(out: Path) -> None:
    names = ("archive_fs", "git_fs", "fsspec_fs", "fsspec_fs-exclusive")
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        tree = _sources(work)
        for example, system in itertools.product(names, ("fuse", "efuse")):
            print(f"{example} on {system}", file=sys.stderr, flush=True)
            results += _measured(example, system, tree, work / f"{example}-{system}")
    settings = {"workloads": names, "rounds": _ROUNDS, "clock": "instructions"}
    write_report(out, settings, results)


def _plain(script: str, arguments: list[str]) -> None:
    """Run a script with :func:`efuse.serve` changed to mount plain FUSE."""
    efuse.serve = functools.partial(efuse.serve, plain=True)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


def main(arguments: list[str]) -> None:
    if arguments[0] == _PLAIN:
        _plain(arguments[1], arguments[2:])
    elif arguments[0] == _INSIDE:
        _inside(Path(arguments[1]))
    else:
        out = str(Path(arguments[0]).absolute())
        in_guest("tests.perf.examples", ONE_CPU_COUNTED, _INSIDE, out)


if __name__ == "__main__":
    main(sys.argv[1:])
