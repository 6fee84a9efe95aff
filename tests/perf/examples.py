# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the file systems of docs/examples gain by eFuse: ``python -m tests.perf.examples JSON``.

A part of Python's own library is walked through and read, each file of it, first when nobody has
seen anything yet and then again. By instructions, in a guest that is started for it; the JSON is
what ``efuse bench --json`` writes.
"""

from __future__ import annotations

import functools
import itertools
import json
import platform
import runpy
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import efuse
from efuse.bench import Report, Result
from efuse.bench.clock import CLOCKS
from efuse.bench.counter import SentRequests
from efuse.bench.machine import machine, versions
from efuse.bench.report import ratios
from efuse.bench.usage import kernel_counts
from efuse.control import find
from tests.commands import EFUSE
from tests.conftest import wait_for
from tests.examples import git, make_database, running, walk

_INSIDE, _PLAIN = "--inside", "--plain"
_PARTS = ("asyncio", "concurrent", "email", "http", "json", "logging", "unittest")
_ROUNDS = 3
_wait_for = functools.partial(wait_for, timeout=120)


def _sources(work: Path) -> Path:
    """Copy what is read."""
    library = Path(sysconfig.get_path("stdlib"))
    for part in _PARTS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(library / part, work / "tree" / part, ignore=ignored)
    return work / "tree"


def _arguments(example: str, tree: Path, work: Path) -> tuple[list[str], list[str]]:
    """Make what *example* serves; return its words before and behind the mount point."""
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


class _Asked:
    """How many requests the daemon of a mount has got so far."""

    def __init__(self, mountpoint: Path) -> None:
        self._mount = find(str(mountpoint), fuse=True)
        self._counter = None if self._mount.is_efuse else SentRequests(self._mount.connection)

    def __call__(self) -> int:
        if self._counter is not None:
            return self._counter.count()
        sample, _paths = kernel_counts(self._mount.connection)
        assert sample is not None
        return sample.total.daemon


def _measured(example: str, system: str, tree: Path, work: Path) -> list[Result]:
    expected, clock = walk(tree), CLOCKS["instructions"]
    rounds: list[tuple[float, int]] = []
    with _served(example, system, tree, work) as mountpoint:
        asked = _Asked(mountpoint)
        for _ in range(1 + _ROUNDS):
            requests, began = asked(), clock()
            seen = walk(_seen_at(example, mountpoint))
            rounds.append(((clock() - began) / 1e9, asked() - requests))
            assert {name: data for name, (_, _, data) in seen.items()} == {
                name: data for name, (_, _, data) in expected.items()
            }
    parts = {f"{example}-first": rounds[:1], f"{example}-again": rounds[1:]}
    return [
        Result(
            workload=workload,
            system=system,
            daemon=example,
            value=statistics.median(seconds for seconds, _ in part),
            unit="s",
            better="lower",
            rounds=tuple(seconds for seconds, _ in part),
            daemon_requests=round(statistics.median(requests for _, requests in part)),
            context_switches=0,
            verified=True,
        )
        for workload, part in parts.items()
    ]


def _inside() -> Report:
    names = ("archive_fs", "git_fs", "fsspec_fs", "fsspec_fs-exclusive")
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        tree = _sources(work)
        for example, system in itertools.product(names, ("fuse", "efuse")):
            print(f"{example} on {system}", file=sys.stderr, flush=True)
            results += _measured(example, system, tree, work / f"{example}-{system}")
    settings = {"workloads": names, "rounds": _ROUNDS, "clock": "instructions"}
    return Report(
        machine(), platform.release(), versions(), settings, tuple(results), ratios(results)
    )


def _plain(script: str, arguments: list[str]) -> None:
    """Run a script whose :func:`efuse.serve` mounts plain FUSE."""
    efuse.serve = functools.partial(efuse.serve, plain=True)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


def main(arguments: list[str]) -> None:
    if arguments[0] == _PLAIN:
        _plain(arguments[1], arguments[2:])
    elif arguments[0] == _INSIDE:
        Path(arguments[1]).write_text(json.dumps(_inside().json(), indent=2) + "\n")
    else:
        out = Path(arguments[0]).absolute()
        words = [*EFUSE, "guest", "run", "--cpus", "1", "--icount", "--", sys.executable]
        subprocess.run([*words, "-m", "tests.perf.examples", _INSIDE, str(out)], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
