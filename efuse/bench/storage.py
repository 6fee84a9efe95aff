# SPDX-License-Identifier: LGPL-2.1-or-later
"""The workloads of storage functions: at the device, in the kernel, or in the program itself.

For each device profile (:mod:`efuse.csd.profiles`) a device with the same files is made. The places
take turns. A function over a whole file is one run that is restarted for each pass; the daemon
place is its reference implementation in Python. Lookups are those of :mod:`efuse.bench.lookup`,
where the daemon place is a C program that goes from block to block with pread(2).

In the cold state the page cache has nothing of the file before each run, and lookups open the file
with O_DIRECT. In the warm state the page cache has the whole file.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from efuse import functions
from efuse.bench.environment import Settings, machine, versions
from efuse.bench.lines import cell_line
from efuse.bench.lookup import lookups, tree, write_tree
from efuse.bench.lower import LOWER, load_csd, on_device
from efuse.bench.report import Report, Result, Series
from efuse.bench.state import keep, resumed
from efuse.csd import Device
from efuse.csd.profiles import PROFILES
from efuse.errors import UsageError
from efuse.functions import Aggregate, Count, Field, Grep, Place, Records, Shipped, anywhere
from efuse.module import live
from efuse.module.build import CSD

__all__ = [
    "PLACES",
    "STORAGE",
    "check_storage",
    "is_storage",
    "run_storage",
    "sizes",
    "storage_steps",
]

PLACES = ("device", "kernel", "daemon", "auto")
"""The places where a storage function can run."""

STORAGE = {
    "scan": "count the lines and a word of a file",
    "select": "the lines of a file with a word that one line in 100 has",
    "aggregate": "sum, least and greatest of a field in the records of a file",
    "lookup": "look up keys in a B+ tree of 1 to 6 levels",
}
"""The workloads of storage functions, with a description of each."""

DEPTHS = range(1, 7)

_MIB = 1 << 20
_SIZES = (64 << 10, 512 << 10, 4 * _MIB, 32 * _MIB, 256 * _MIB)
_LINE = 64
_WORD = b"error"
_ROUND_BYTES = 4 * _MIB  # A round of a small file has several runs.
_MOST_RUNS = 16
_LOOKUP = "lookup"
_LOOKUPS = 64
_CALLS: dict[str, Shipped] = {
    "scan": Count(_WORD),
    "select": Grep(_WORD),
    "aggregate": Aggregate(Records(_LINE), Field(8)),
}


@dataclass(frozen=True, slots=True)
class _Pass:
    """The result of one round at one place; all numbers are per run.

    :ivar us: time, us.
    :ivar link_bytes: bytes read over the link.
    :ivar device_steps: number of blocks at which the device looked.
    :ivar kernel_steps: number of blocks at which the kernel looked.
    :ivar chained: how many of `kernel_steps` were read below the file system.
    :ivar right: whether all output was right.
    """

    us: float
    link_bytes: float
    device_steps: float
    kernel_steps: float
    chained: float
    right: bool


_Go = Callable[[], "_Pass"]


@dataclass(frozen=True, slots=True)
class _Cell:
    """A workload that is measured at all places.

    :ivar name: name of the workload, such as ``slow-link-scan-64K-cold``.
    :ivar daemon: what runs at the daemon place: ``reference`` (the function's reference
        implementation) or ``pread``.
    :ivar ways: functions that run a round, by place.
    """

    name: str
    daemon: str
    ways: dict[str, _Go]


def is_storage(workloads: Sequence[str]) -> bool:
    """Return whether the workloads are those of storage functions.

    :raises UsageError: only some of them are.
    """
    some = [name for name in workloads if name in STORAGE]
    if some and len(some) < len(workloads):
        raise UsageError(
            f"{', '.join(some)} cannot be measured together with others",
            hint="they need another module: measure them in a run of their own",
        )
    return bool(some)


def sizes(scale: float) -> list[int]:
    """Return the sizes of the files, in bytes: up to 256 MiB at a scale of 1."""
    return [size for size in _SIZES if size <= max(_SIZES[0], scale * _SIZES[-1])]


def check_storage(settings: Settings) -> None:
    """Check that the workloads can be measured with these settings.

    :raises UsageError: they cannot.
    """
    for system in settings.systems:
        if system not in PLACES:
            raise UsageError(
                f"{settings.workloads[0]} is not measured on {system}",
                hint=f"use {', '.join(PLACES)}",
            )
    if settings.daemon:
        raise UsageError(f"{settings.workloads[0]} is not measured through {settings.daemon}")
    if settings.lower != LOWER[0]:
        raise UsageError(
            f"{settings.workloads[0]} is not measured on {settings.lower} alone",
            hint="leave out --lower: each model of a device is measured in turn",
        )


def storage_steps(settings: Settings) -> dict[str, int]:
    """Return the names of the parts that a run reports as done, each with the count 1."""
    return dict.fromkeys(
        (_name(profile, *cell) for profile in PROFILES for cell in _planned(settings)), 1
    )


def run_storage(
    settings: Settings, say: Callable[[str], None], state: Path | None = None
) -> Report:
    """Run all workloads and return the report.

    :param say: is called with each line about the progress.
    :param state: file that keeps the finished workloads; those that it has are not run again.
    :raises UsageError: the file belongs to a different run.
    :raises EfuseError: csd.ko cannot be loaded, or a device cannot be made or used.
    """
    load_csd(say)
    places = settings.systems or PLACES
    words = {**asdict(settings), "profiles": {n: dict(p.values) for n, p in PROFILES.items()}}
    csd = versions(live.status(CSD).version or "")
    report = resumed(state, Report(machine(), platform.release(), csd, words, ()))
    with ExitStack() as stack:
        for name in (*(call.name for call in _CALLS.values()), "btree_lookup"):
            stack.enter_context(functions.load(name))
        for profile in PROFILES:
            with on_device(profile, _mib(settings)) as (device, root):
                for cell in _cells(profile, device, root, settings, report.workloads):
                    found = _run_cell(cell, places, settings, say)
                    report = report.extended(found, (of for of in places if of != "daemon"))
                    keep(state, report)
    return report


def _mib(settings: Settings) -> int:
    return 128 + 2 * sum(sizes(settings.scale)) // _MIB


def _planned(settings: Settings) -> Iterator[tuple[str, int, bool]]:
    """Yield the parts for each device: workload, size of the file or levels of the tree, warm.

    Parts that use the same file follow each other.
    """
    wanted = [name for name in settings.workloads if name in _CALLS]
    for size in sizes(settings.scale):
        for kind in wanted:
            yield from ((kind, size, warm) for warm in (False, True))
    for depth in DEPTHS if _LOOKUP in settings.workloads else []:
        yield from ((_LOOKUP, depth, warm) for warm in (False, True))


def _name(profile: str, kind: str, size: int, warm: bool) -> str:
    return f"{profile}-{kind}-{size if kind == _LOOKUP else _words(size)}-{_state(warm)}"


def _cells(
    profile: str, device: Device, root: Path, settings: Settings, done: Collection[str]
) -> Iterator[_Cell]:
    """Yield the parts to measure on a device that are not in *done*."""
    for kind, size, warm in _planned(settings):
        name = _name(profile, kind, size, warm)
        if name in done:
            continue
        if kind == _LOOKUP:
            path, items = root / f"tree-{size}", tree(size)
            if not path.exists():
                write_tree(path, size)
                os.sync()
            yield _Cell(name, "pread", _lookup_ways(device, path, items, warm))
        else:
            path = root / f"{size}"
            if not path.exists():
                _write_lines(path, size)
            with _whole(device, path, size, _CALLS[kind], warm) as ways:
                yield _Cell(name, "reference", ways)


def _state(warm: bool) -> str:
    return "warm" if warm else "cold"


def _words(size: int) -> str:
    return f"{size >> 20}M" if size >= _MIB else f"{size >> 10}K"


def _write_lines(path: Path, size: int) -> None:
    """Write a file of lines, each of which is also a record."""
    source = random.Random(size)
    chunk = b"".join(
        b"%08d%.49s %s\n" % (n, source.randbytes(25).hex().encode(), _word(source))
        for n in range(min(size, _MIB) // _LINE)
    )
    with path.open("wb") as file:
        for _ in range(size // len(chunk)):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def _word(source: random.Random) -> bytes:
    return _WORD if source.randrange(100) == 0 else b"quiet"


@contextmanager
def _whole(
    device: Device, path: Path, size: int, call: Shipped, warm: bool
) -> Iterator[dict[str, _Go]]:
    """Yield the functions that run a round of *call* over a file, by place."""
    runs = max(1, min(_MOST_RUNS, _ROUND_BYTES // size))
    with anywhere.begin(call, path, "daemon") as work:
        wanted = b"".join(work)
    with ExitStack() as stack:
        fd = os.open(path, os.O_RDONLY)
        stack.callback(os.close, fd)
        ways: dict[str, _Go] = {}
        for place in (Place.DEVICE, Place.KERNEL, Place.AUTO):
            one = stack.enter_context(functions.run(call.name, fd, call.encode(), place=place))
            ways[place.name.lower()] = _repeated(
                device, fd, warm, runs, wanted, _in_kernel(one, call.encode())
            )
        ways["daemon"] = _repeated(device, fd, warm, runs, wanted, _by_reference(path, call))
        yield ways


_Run = Callable[[], tuple[bytes, int, int]]
"""Returns the output, and the number of blocks at which the device and the kernel looked."""


def _in_kernel(one: functions.Run, args: bytes) -> _Run:
    def go() -> tuple[bytes, int, int]:
        one.restart(args)
        raw, status = one.result(), one.status()
        return raw, status.device_steps, status.kernel_steps

    return go


def _by_reference(path: Path, call: Shipped) -> _Run:
    def go() -> tuple[bytes, int, int]:
        with anywhere.begin(call, path, "daemon") as work:
            return b"".join(work), 0, 0

    return go


def _repeated(device: Device, fd: int, warm: bool, runs: int, wanted: bytes, once: _Run) -> _Go:
    def go() -> _Pass:
        if warm:
            _read_all(fd)
        link = device.read("link_read_bytes")
        took_ns, right, steps = 0, True, (0, 0)
        for _ in range(runs):
            if not warm:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            before = time.perf_counter_ns()
            raw, *looked = once()
            took_ns += time.perf_counter_ns() - before
            right = right and raw == wanted
            steps = steps[0] + looked[0], steps[1] + looked[1]
        link = device.read("link_read_bytes") - link
        return _Pass(took_ns / runs / 1000, link / runs, steps[0] / runs, steps[1] / runs, 0, right)

    return go


def _read_all(fd: int) -> None:
    position = 0
    while some := os.pread(fd, _MIB, position):
        position += len(some)


def _lookup_ways(
    device: Device, path: Path, items: Mapping[int, bytes], warm: bool
) -> dict[str, _Go]:
    source = random.Random(len(items))
    keys = [source.choice((key, key + 1)) for key in source.choices(list(items), k=2 * _LOOKUPS)]
    wanted = tuple(items.get(key, b"") for key in keys[_LOOKUPS:])

    def go(way: str) -> _Pass:
        with path.open("rb") as file:
            if warm:
                _read_all(file.fileno())
            else:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        link = device.read("link_read_bytes")
        done = lookups(path, way, keys, warm=_LOOKUPS, direct=not warm)
        link = device.read("link_read_bytes") - link
        n = len(wanted)
        return _Pass(
            done.ns / n / 1000,
            link / len(keys),
            done.device_steps / n,
            done.kernel_steps / n,
            done.chained / n,
            done.values == wanted,
        )

    ways = {"device": "device", "kernel": "kernel", "daemon": "pread", "auto": "auto"}
    return {place: lambda way=way: go(way) for place, way in ways.items()}  # type: ignore[misc]


def _run_cell(
    cell: _Cell, places: Sequence[str], settings: Settings, say: Callable[[str], None]
) -> list[Result]:
    """Run a warm-up round, then the measured rounds; in each the places take turns."""
    rounds: dict[str, list[_Pass]] = {place: [] for place in places}
    for number in range(settings.rounds + 1):
        for place in places:
            one = cell.ways[place]()
            if number:
                rounds[place].append(one)
    say(cell_line(cell.name, {p: statistics.median(r.us for r in rounds[p]) for p in places}))
    return [_result(cell, place, rounds[place]) for place in places]


def _result(cell: _Cell, place: str, rounds: Sequence[_Pass]) -> Result:
    values = tuple(r.us for r in rounds)
    names = ("link_bytes", "device_steps", "kernel_steps", "chained")
    units = ("B", "blocks", "blocks", "blocks")
    measures = {}
    for name, unit in zip(names, units, strict=True):
        found = tuple(float(getattr(r, name)) for r in rounds)
        measures[name] = Series(statistics.median(found), unit, found, compared=False)
    return Result(
        workload=cell.name,
        system=place,
        daemon=cell.daemon,
        value=statistics.median(values),
        unit="us",
        better="lower",
        rounds=values,
        daemon_requests=0,
        context_switches=0,
        verified=all(r.right for r in rounds),
        measures=measures,
    )
