# SPDX-License-Identifier: LGPL-2.1-or-later
"""The metadata workloads of one system call each.

Each is prepared on the lower file system and run on a mount of it. It returns all that it saw, so
that a wrong answer cannot pass for a fast one.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from efuse.bench.caches import drop_caches
from efuse.bench.clock import Clock
from efuse.bench.workload import Outcome

__all__ = ["CALLS", "TIME_NS", "MetadataWorkload", "contents", "digest", "write"]

TIME_NS = 1_700_000_000_000_000_000
"""Modification time of the prepared files, ns since the epoch."""

_BLOCK = b"efuse " * 682 + b"4KiB"


@dataclass(frozen=True, slots=True)
class MetadataWorkload:
    """A :class:`~efuse.bench.workload.Workload` that is timed as a whole.

    :ivar count: number of operations or files at a scale of 1.
    :ivar unit: unit of the value: ``us`` per operation, or ``s`` for all.
    :ivar prepare: makes the files: ``prepare(directory, count)``.
    :ivar run: runs the workload once: ``run(directory, count, round)``. Returns what it saw, for
        :func:`digest`.
    :ivar room: space that the files need, with all that the rounds leave, in MiB.
    :ivar cold: whether each round begins without cached dentries, inodes and pages.
    """

    name: str
    what: str
    count: int
    unit: str
    prepare: Callable[[Path, int], None]
    run: Callable[[Path, int, int], list[object]]
    room: int = 32
    cold: bool = False
    better: str = "lower"
    has_reference: bool = True
    transports: tuple[str, ...] = ()

    def scaled(self, scale: float) -> int:
        """Return the number of operations at *scale*."""
        return max(10, round(self.count * scale))

    def size_mib(self, count: int) -> int:
        """Return the most space that the files need, in MiB."""
        return self.room + count // 250

    def warm_up(self, mount: Path, lower: Path, count: int) -> bool:
        """Do nothing: each round is verified."""
        return True

    def sync(self) -> None:
        """Empty the caches for a cold workload; other workloads stay warm between rounds."""
        if self.cold:
            drop_caches(dentries=True)

    def measure(self, mount: Path, count: int, round: int, clock: Clock) -> Outcome:
        """Run one round and time it."""
        begin_ns = clock()
        seen = self.run(mount, count, round)
        took_ns = clock() - begin_ns
        value = took_ns / 1e9 if self.unit == "s" else took_ns / 1e3 / count
        return Outcome(value, digest(seen))

    def verify(self, mount: Path, lower: Path, reference: Path) -> bool:
        """Return whether the files on the lower file system equal those of the reference."""
        return contents(lower) == contents(reference)


def digest(seen: Iterable[object]) -> str:
    """Return a digest of what a workload saw; of a file's status, only what copies share."""
    made = hashlib.sha256()
    for what in seen:
        made.update(repr(_status(what) if isinstance(what, os.stat_result) else what).encode())
    return made.hexdigest()


def _status(st: os.stat_result) -> tuple[int, ...]:
    return (st.st_mode, st.st_nlink, st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns)


def write(path: Path, data: bytes) -> None:
    """Write a file with a modification time that is the same in each copy."""
    path.write_bytes(data)
    os.utime(path, ns=(TIME_NS, TIME_NS))


def _names(count: int) -> list[str]:
    return [f"file{i:05}" for i in range(count)]


def _prepare_stat(directory: Path, count: int) -> None:
    write(directory / "file", _BLOCK)


def _run_stat(directory: Path, count: int, round: int) -> list[object]:
    path = os.fspath(directory / "file")
    stat = os.stat
    return [stat(path) for _ in range(count)]


def _prepare_negative(directory: Path, count: int) -> None:
    write(directory / "present", b"")


def _run_negative(directory: Path, count: int, round: int) -> list[object]:
    absent = [os.fspath(directory / f"absent{i:03}") for i in range(300)]
    stat, missing = os.stat, 0
    for i in range(count):
        try:
            stat(absent[i % len(absent)])
        except FileNotFoundError:
            missing += 1
    return [missing, sorted(p.name for p in directory.iterdir())]


def _prepare_small(directory: Path, count: int) -> None:
    for i, name in enumerate(_names(count // 2)):
        write(directory / name, b"x" * (i % 4096))


def _run_open_close(directory: Path, count: int, round: int) -> list[object]:
    seen: list[object] = []
    paths = [os.fspath(directory / name) for name in _names(count // 2)]
    for path in paths * 2:
        fd = os.open(path, os.O_RDONLY)
        seen.append(os.fstat(fd))
        os.close(fd)
    return seen


def _prepare_xattr(directory: Path, count: int) -> None:
    for name in _names(max(1, count // 20)):
        write(directory / name, b"")
        os.setxattr(directory / name, "user.present", f"value of {name}".encode())


def _run_xattr(directory: Path, count: int, round: int) -> list[object]:
    """Get an existing and a missing attribute each time; set one and get it every 200th time."""
    seen: list[object] = []
    paths = [os.fspath(directory / name) for name in _names(max(1, count // 20))]
    for turn in range(10):
        for i, path in enumerate(paths):
            seen.append(os.getxattr(path, "user.present"))
            try:
                seen.append(os.getxattr(path, "user.absent"))
            except OSError as e:
                if e.errno != errno.ENODATA:
                    raise
                seen.append("absent")
            if (turn * len(paths) + i) % 200 == 199:
                os.setxattr(path, "user.set", f"{round} {turn}".encode())
                seen.append(os.getxattr(path, "user.set"))
    return seen


def _prepare_small_write(directory: Path, count: int) -> None:
    write(directory / "first", b"")


def _run_small_write(directory: Path, count: int, round: int) -> list[object]:
    path = directory / f"log{round}"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC, 0o644)
    for _ in range(count):
        os.write(fd, _BLOCK)
    os.fsync(fd)
    os.close(fd)
    return [path.stat().st_size]


def contents(directory: Path) -> str:
    """Return a digest of the data, names and user xattrs of all files below *directory*."""
    seen: list[object] = []
    for path, directories, files in os.walk(directory):
        directories[:] = sorted(d for d in directories if d != ".git")
        for name in sorted(files):
            file = Path(path) / name
            st = file.lstat()
            seen += [os.fspath(file.relative_to(directory)), st.st_mode, st.st_size]
            seen.append(file.read_bytes())
            seen += [(name, os.getxattr(file, name)) for name in sorted(os.listxattr(file))]
    return digest(seen)


CALLS = {
    workload.name: workload
    for workload in (
        MetadataWorkload("stat", "os.stat of one file", 2000, "us", _prepare_stat, _run_stat),
        MetadataWorkload(
            "negative",
            "stats of names that do not exist, 300 distinct",
            30_000,
            "us",
            _prepare_negative,
            _run_negative,
        ),
        MetadataWorkload(
            "open-close",
            "open, fstat and close of small files, each twice",
            2000,
            "us",
            _prepare_small,
            _run_open_close,
        ),
        MetadataWorkload(
            "xattr",
            "getxattr of a present name, of an absent one, and after setxattr",
            4000,
            "us",
            _prepare_xattr,
            _run_xattr,
        ),
        MetadataWorkload(
            "small-write",
            "4 KiB buffered appends",
            1000,
            "us",
            _prepare_small_write,
            _run_small_write,
        ),
    )
}
"""The workloads of one system call each, by name."""
