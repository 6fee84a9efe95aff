# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sample eFuse mounts from sysfs."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from efuse.control import PATHS, ROOT, Connection, connections, mounts
from efuse.control.attributes import read_file, read_files
from efuse.control.files import KeptFiles
from efuse.control.mounts import MOUNTINFO
from efuse.errors import ControlError, reason
from efuse.stats.channels import (
    CHANNEL_COUNTERS,
    CHANNEL_STATE,
    Balance,
    Channel,
    ChannelCounters,
)
from efuse.stats.model import COUNTERS, TIMES, Counters, DaemonEnd, MapUsage, Sample
from efuse.stats.paths import LATENCIES, PATH_COUNTERS, PATH_TIMES, PathCounters

__all__ = ["read", "read_all"]

_Read = Callable[[Path, Sequence[str]], list[str]]


def read(
    connection: Connection,
    *,
    mountpoint: str = "",
    timing: bool = True,
    maps: Iterable[MapUsage] = (),
    files: KeptFiles | None = None,
) -> Sample:
    """Read all counters of *connection* now.

    For an opcode without requests, only ``requests`` is read.

    :param mountpoint: mount point for the sample.
    :param timing: whether to read times. Reading one makes the kernel measure every request for
        10 s. Without it, the times in the sample are 0.
    :param maps: usage of the maps for the sample.
    :param files: files that are kept open, which makes repeated reading cheaper.
    :raises ControlError: the connection no longer exists.
    """
    read = read_files if files is None else files.read
    stats = connection.path / "stats"
    opcodes = _read_opcodes(read, stats, connection.opcodes(), timing)
    if timing and "lookup" not in opcodes:
        read_file(stats / "lookup" / "hit_ns")
    return Sample(
        connection=connection.id,
        taken_ns=time.monotonic_ns(),
        mountpoint=mountpoint,
        state=connection.state,
        ops=connection.ops,
        enable_seq=connection.enable_seq,
        consistency=connection.consistency,
        exit_info=str(connection.exit_info),
        recovery=connection.recovery,
        daemon=connection.daemon,
        incarnation=connection.incarnation,
        last_end=_last_end(connection),
        waiting=connection.waiting,
        io_uring=connection.io_uring,
        learned=connection.learned,
        map_full=connection.map_full,
        invalid_verdicts=connection.invalid_verdicts,
        opcodes=opcodes,
        paths={p: _read_path(read, connection.path / "paths" / p, timing) for p in PATHS},
        balance=Balance(
            policy=connection.policy,
            threshold=connection.threshold,
            spread=connection.spread,
            spin_ns=connection.spin_ns,
        ),
        channels=_read_channels(read, connection.path / "channels"),
        maps=tuple(maps),
        timing=timing,
    )


def _last_end(connection: Connection) -> DaemonEnd:
    told = connection.daemon_exit
    gap_ns = told.gap_ms * 1_000_000
    return DaemonEnd(told.time, told.lost, told.resent, told.settled, told.failed, gap_ns)


def _read_channels(read: _Read, directory: Path) -> dict[int, Channel]:
    try:
        cpus = sorted(int(p.name) for p in directory.iterdir() if p.name.isdecimal())
    except OSError as e:
        raise ControlError(f"cannot list {directory}: {reason(e)}") from e
    found = ((cpu, _read_channel(read, directory / str(cpu))) for cpu in cpus)
    # CPUs that are possible but not present have a queue too.
    return {cpu: channel for cpu, channel in found if channel.used}


def _read_channel(read: _Read, directory: Path) -> Channel:
    numbers = _counts(read, directory, (*CHANNEL_STATE, *CHANNEL_COUNTERS))
    state = zip(CHANNEL_STATE, numbers, strict=False)
    counters = ChannelCounters(*numbers[len(CHANNEL_STATE) :])
    return Channel(**dict(state), counters=counters)


def _read_opcodes(
    read: _Read, directory: Path, opcodes: Sequence[str], timing: bool
) -> dict[str, Counters]:
    names = [n for n in COUNTERS if timing or n not in TIMES]
    requests = _counts(read, directory, [f"{opcode}/requests" for opcode in opcodes])
    found = {}
    for opcode, number in zip(opcodes, requests, strict=True):
        if number:
            counts = _counts(read, directory, [f"{opcode}/{name}" for name in names])
            found[opcode] = Counters(**dict(zip(names, counts, strict=True)))
    return found


def _read_path(read: _Read, directory: Path, timing: bool) -> PathCounters:
    names = [n for n in PATH_COUNTERS if timing or n not in PATH_TIMES]
    found: dict[str, Any] = dict(zip(names, _counts(read, directory, names), strict=True))
    if timing:
        found["latency"] = _latency(read, directory)
    return PathCounters(**found)


def _latency(read: _Read, directory: Path) -> tuple[int, ...]:
    path = directory / "latency"
    words = read(directory, ["latency"])[0].split()
    if len(words) != LATENCIES or not all(word.isdecimal() for word in words):
        raise ControlError(f"{path} does not hold {LATENCIES} numbers")
    return tuple(map(int, words))


def _counts(read: _Read, directory: Path, names: Sequence[str]) -> list[int]:
    words = read(directory, names)
    try:
        return [int(word) for word in words]
    except ValueError as e:
        name, word = next(f for f in zip(names, words, strict=True) if not f[1].isdecimal())
        raise ControlError(f"{directory / name} holds {word!r}, which is not a number") from e


def read_all(
    *,
    timing: bool = True,
    root: Path = ROOT,
    mountinfo: Path = MOUNTINFO,
    files: KeptFiles | None = None,
) -> tuple[Sample, ...]:
    """Read every eFuse connection, with its mount point. Leave out one that goes away meanwhile.

    :param timing: see `read`.
    :param root: root of eFuse's sysfs tree.
    :param mountinfo: path of the mountinfo file.
    :param files: see `read`.
    :raises ControlError: the module is not loaded.
    """
    where: dict[int, str] = {}
    for mount in mounts(mountinfo=mountinfo):
        where.setdefault(mount.connection, mount.mountpoint)
    samples = []
    for number in connections(root=root):
        try:
            connection = Connection(number, root=root)
            mountpoint = where.get(number, "")
            samples.append(read(connection, mountpoint=mountpoint, timing=timing, files=files))
        except ControlError:
            if number in connections(root=root):
                raise
    return tuple(samples)
