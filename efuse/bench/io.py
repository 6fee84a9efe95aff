# SPDX-License-Identifier: LGPL-2.1-or-later
"""The workloads that read and write data with fio.

There is no time to verify data in a measured round. Each workload is therefore run once before the
rounds with fio's ``--verify``: it reads through the mount what was prepared on the lower file
system, then writes through the mount and reads back. These are two passes because fio cannot verify
the reads of a mixed workload. After the rounds each file is compared with the one on the lower file
system.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from efuse.bench.caches import drop_caches
from efuse.bench.clock import Clock
from efuse.bench.fio import VERIFY, fio
from efuse.bench.workload import Outcome

__all__ = ["IO", "IoWorkload"]

_KIB, _MIB = 1 << 10, 1 << 20
_SEED = 20_000
# How much the verified pass moves in each direction, all jobs together.
_VERIFIED_BLOCKS, _VERIFIED_BYTES = 512, 64 * _MIB
# From this length of a round on, in milliseconds, the files have their full size.
_WHOLE = 1000


@dataclass(frozen=True, slots=True)
class IoWorkload:
    """A :class:`~efuse.bench.workload.Workload` of fio.

    :ivar mode: fio's ``rw``; a mixed one has 70 % reads.
    :ivar block: bytes of a read or write.
    :ivar jobs: number of jobs.
    :ivar files: number of files that all jobs share, or that each job has if `own` is true.
    :ivar file_bytes: size of each file.
    :ivar own: whether each job has files of its own.
    :ivar grows: what is smaller at a small scale: ``files``, their number, or ``bytes``, their
        size; empty: neither.
    :ivar direct: whether to use O_DIRECT.
    :ivar cold: whether a round begins with a cold page cache and reads or writes all data once,
        instead of repeating until the time is over.
    """

    name: str
    what: str
    unit: str
    mode: str
    block: int
    jobs: int
    files: int
    file_bytes: int
    own: bool = False
    grows: str = ""
    direct: bool = True
    cold: bool = False
    better: str = "higher"
    has_reference: bool = False
    transports: tuple[str, ...] = ()

    def scaled(self, scale: float) -> int:
        """Return the length of a round in milliseconds: 10 s at a scale of 1."""
        return max(100, round(10_000 * scale))

    def size_mib(self, count: int) -> int:
        """Return the space that the workload's files need, in MiB."""
        files = self._files(count) * (self.jobs if self.own else 1)
        return files * self._bytes(count) // _MIB + 8

    def prepare(self, lower: Path, count: int) -> None:
        """Fill the files; each block contains its checksum."""
        fio(self.name, lower, [*self._writers(count), *VERIFY, "--rw=write", "--do_verify=0"])

    def warm_up(self, mount: Path, lower: Path, count: int) -> bool:
        """Verify the prepared data through the mount, then write new data and verify that.

        :raises EfuseError: fio read other data.
        """
        order = "rand" if self.mode.startswith("rand") else ""
        how = (*VERIFY, f"--direct={self.direct:d}")
        if self.mode != "write":
            words = [*self._readers(count), *self._at_most(self.jobs), *how, f"--rw={order}read"]
            fio(self.name, mount, words)
        if not self.mode.endswith("read"):
            writers = self.jobs if self.own or self.files == 1 else self.files
            words = [*self._writers(count), *self._at_most(writers), *how, f"--rw={order}write"]
            fio(self.name, mount, words)
        return True

    def sync(self) -> None:
        """Write back dirty data; for a cold workload also empty the page cache."""
        os.sync()
        if self.cold:
            drop_caches()

    def measure(self, mount: Path, count: int, round: int, clock: Clock) -> Outcome:
        """Run one round and return fio's result, which fio times itself."""
        words = [*self._readers(count), f"--rw={self.mode}", "--rwmixread=70"]
        words += [f"--runtime={count}ms", f"--randseed={_SEED + round}"]
        words.append(f"--direct={self.direct:d}")
        words.append("--end_fsync=1" if self.cold else "--time_based")
        found = fio(self.name, mount, words)
        return Outcome(found.iops if self.unit == "iops" else found.mib_s)

    def verify(self, mount: Path, lower: Path, reference: Path) -> bool:
        """Return whether the files on the mount equal those on the lower file system."""
        os.sync()
        names = sorted(path.name for path in lower.iterdir())
        return all(_same(mount / name, lower / name) for name in names)

    def _files(self, count: int) -> int:
        if self.grows != "files":
            return self.files
        return max(5, self.files * count // (10 * _WHOLE))

    def _bytes(self, count: int) -> int:
        if self.grows != "bytes" or count >= _WHOLE:
            return self.file_bytes
        return max(2 * self.block, 16 * _MIB, self.file_bytes * count // _WHOLE // _MIB * _MIB)

    def _at_most(self, jobs: int) -> tuple[str, ...]:
        """Return options that limit what each of *jobs* moves, in whole blocks."""
        blocks = min(_VERIFIED_BLOCKS, _VERIFIED_BYTES // self.block) // jobs
        return (f"--io_size={max(1, blocks) * self.block}", f"--randseed={_SEED}")

    def _readers(self, count: int) -> list[str]:
        """Return options by which all jobs use all files, or each job its own."""
        words = [f"--bs={self.block}", f"--numjobs={self.jobs}", f"--filesize={self._bytes(count)}"]
        if self.own:
            return [*words, *self._own_files(count)]
        return [*words, "--filename=" + ":".join(f"f.{n}" for n in range(self.files))]

    def _writers(self, count: int) -> list[str]:
        """Return options by which no job writes what another job verifies."""
        block, size = f"--bs={self.block}", self._bytes(count)
        if self.own:
            words = [f"--numjobs={self.jobs}", *self._own_files(count)]
        elif self.files > 1:
            words = [f"--numjobs={self.files}", "--filename_format=f.$jobnum"]
        else:
            # With --filesize each job would continue to the end of the file.
            part = size // self.jobs
            ranges = [f"--size={part}", f"--offset_increment={part}"]
            return [block, f"--numjobs={self.jobs}", "--filename=f.0", *ranges]
        return [block, f"--filesize={size}", *words]

    def _own_files(self, count: int) -> list[str]:
        return [f"--nrfiles={self._files(count)}", "--filename_format=f.$jobnum.$filenum"]


def _same(one: Path, other: Path) -> bool:
    with one.open("rb") as left, other.open("rb") as right:
        while block := left.read(_MIB):
            if block != right.read(_MIB):
                return False
        return not right.read(1)


_T1 = IoWorkload(
    "t1-single",
    "one 8 MiB file, 4 KiB, random, 70 % reads, direct, 8 jobs",
    "iops",
    "randrw",
    block=4 * _KIB,
    jobs=8,
    files=1,
    file_bytes=8 * _MIB,
)
_T2 = IoWorkload(
    "t2-small",
    "50 files of 512 KiB a job, 4 KiB, random, 70 % reads, direct, 16 jobs",
    "iops",
    "randrw",
    block=4 * _KIB,
    jobs=16,
    files=50,
    file_bytes=512 * _KIB,
    own=True,
    grows="files",
)
_T3 = IoWorkload(
    "t3-large",
    "5 large files, 1 MiB, random, 70 % reads, direct, 16 jobs",
    "MiB/s",
    "randrw",
    block=_MIB,
    jobs=16,
    files=5,
    file_bytes=64 * _MIB,
    grows="bytes",
)
_SEQ = IoWorkload(
    "seq-read",
    "128 KiB, sequential, from a cold page cache, one job",
    "MiB/s",
    "read",
    block=128 * _KIB,
    jobs=1,
    files=1,
    file_bytes=64 * _MIB,
    own=True,
    grows="bytes",
    direct=False,
    cold=True,
)
_ONCE = replace(
    _SEQ,
    name="random-once",
    what="4 KiB, each block once, random, direct, from a cold page cache, one job",
    unit="iops",
    mode="randread",
    block=4 * _KIB,
    direct=True,
)


def _read_only(workload: IoWorkload) -> IoWorkload:
    what = workload.what.replace("70 % reads", "only reads")
    return replace(workload, name=f"{workload.name}-read", what=what, mode="randread")


def _buffered(workload: IoWorkload) -> IoWorkload:
    what = workload.what.replace("direct", "cold page cache")
    name = f"{workload.name}-buffered"
    return replace(workload, name=name, what=what, direct=False, cold=True)


def _all() -> list[IoWorkload]:
    t3_512k = replace(
        _T3, name="t3-large-512k", what=_T3.what.replace("1 MiB", "512 KiB"), block=512 * _KIB
    )
    t3_8m = replace(
        _T3, name="t3-large-8m", what=_T3.what.replace("1 MiB", "8 MiB"), block=8 * _MIB
    )
    mixed = [_T1, _T2, t3_512k, _T3, t3_8m]
    what = _SEQ.what.replace("from a cold page cache", "and an fsync")
    write = replace(_SEQ, name="seq-write", what=what, mode="write")
    four = [
        replace(one, name=f"{one.name}-4", what=one.what.replace("one job", "4 jobs"), jobs=4)
        for one in (_SEQ, write)
    ]
    made = [*mixed, *map(_buffered, mixed), _read_only(_T1), _read_only(_T2), _SEQ, _ONCE]
    made += [write, *four]
    return sorted(made, key=lambda workload: workload.name)


IO: dict[str, IoWorkload] = {workload.name: workload for workload in _all()}
"""The workloads that have one kind of load each, by name."""
