# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sample eFuse mounts from sysfs."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from efuse.control import PATHS, ROOT, Connection, connections, mounts
from efuse.control.attributes import read_files
from efuse.control.counters import lines, numbers
from efuse.control.files import KeptFiles
from efuse.control.mounts import MOUNTINFO
from efuse.errors import ControlError
from efuse.stats.channels import (
    CHANNEL_COUNTERS,
    CHANNEL_STATE,
    Balance,
    Channel,
    ChannelCounters,
)
from efuse.stats.model import COUNTERS, Counters, DaemonEnd, MapUsage, Sample
from efuse.stats.paths import LATENCIES, PATH_COUNTERS, PathCounters

__all__ = ["read", "read_all"]

_Read = Callable[[Path, Sequence[str]], list[str]]

# The first line of an opcode that was not requested. Most are not, and are not parsed.
_UNUSED = "requests 0\n"


def read(
    connection: Connection,
    *,
    mountpoint: str = "",
    timing: bool = True,
    maps: Iterable[MapUsage] = (),
    files: KeptFiles | None = None,
) -> Sample:
    """Read all counters of *connection* now.

    :param mountpoint: mount point for the sample.
    :param timing: whether to read times, and make the kernel take them for the next 10 s. Without
        it, the times in the sample are 0.
    :param maps: usage of the maps for the sample.
    :param files: files that are kept open, which makes repeated reading cheaper.
    :raises ControlError: the connection no longer exists.
    """
    read = read_files if files is None else files.read
    if timing:
        read(connection.path, ["watch_times"])
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
        opcodes=_read_opcodes(read, connection, timing),
        paths=_read_paths(read, connection, timing),
        balance=Balance(
            policy=connection.policy,
            threshold=connection.threshold,
            spread=connection.spread,
            spin_ns=connection.spin_ns,
        ),
        channels=_read_channels(read, connection),
        maps=tuple(maps),
        timing=timing,
    )


def _last_end(connection: Connection) -> DaemonEnd:
    told = connection.daemon_exit
    gap_ns = told.gap_ms * 1_000_000
    return DaemonEnd(told.time, told.lost, told.resent, told.settled, told.failed, gap_ns)


def _read_channels(read: _Read, connection: Connection) -> dict[int, Channel]:
    directory, cpus = connection.path / "channels", connection.cpus()
    texts = read(directory, [str(cpu) for cpu in cpus])
    found = ((cpu, _channel(directory / str(cpu), t)) for cpu, t in zip(cpus, texts, strict=True))
    # CPUs that are possible but not present have a queue too.
    return {cpu: channel for cpu, channel in found if channel.used}


def _channel(path: Path, text: str) -> Channel:
    values = lines(text)
    counters = ChannelCounters(**numbers(path, values, CHANNEL_COUNTERS))
    return Channel(**numbers(path, values, CHANNEL_STATE), counters=counters)


def _read_opcodes(read: _Read, connection: Connection, timing: bool) -> dict[str, Counters]:
    directory, opcodes = connection.path / "stats", connection.opcodes()
    found = {}
    for opcode, text in zip(opcodes, read(directory, opcodes), strict=True):
        if text.startswith(_UNUSED):
            continue
        counters = Counters(**numbers(directory / opcode, lines(text), COUNTERS))
        if counters.requests:
            found[opcode] = counters if timing else counters.untimed()
    return found


def _read_paths(read: _Read, connection: Connection, timing: bool) -> dict[str, PathCounters]:
    directory = connection.path / "paths"
    found = {}
    for name, text in zip(PATHS, read(directory, PATHS), strict=True):
        values = lines(text)
        counters = PathCounters(
            **numbers(directory / name, values, PATH_COUNTERS),
            latency=_latency(directory / name, values.get("latency", "")),
        )
        found[name] = counters if timing else counters.untimed()
    return found


def _latency(path: Path, value: str) -> tuple[int, ...]:
    words = value.split()
    if len(words) != LATENCIES or not all(word.isdecimal() for word in words):
        raise ControlError(f"{path} does not hold {LATENCIES} numbers")
    return tuple(map(int, words))


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
