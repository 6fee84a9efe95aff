# SPDX-License-Identifier: LGPL-2.1-or-later
"""Samples of mounts and devices over time, always the same, for frames of ``efuse top``."""

from __future__ import annotations

from efuse.stats import (
    Balance,
    Channel,
    ChannelCounters,
    Counters,
    DeviceCounters,
    DeviceSample,
    MapUsage,
    PathCounters,
    Sample,
    Snapshot,
)
from efuse.stats.latency import BUCKETS
from efuse.stats.paths import LATENCIES
from efuse.tui import Model

__all__ = ["CONNECTION", "PLAIN", "model", "sample"]

CONNECTION = 41
"""Number of the first mount's connection."""

PLAIN = 62
"""Number of the plain FUSE mount's connection."""

_WAVE = (3, 5, 8, 9, 7, 4, 2, 1, 2, 6)
"""The amount of events in each second, repeated."""


def _amount(second: int, shift: int = 0) -> int:
    """Return the amount of events up to a second."""
    return sum(_WAVE[(s + shift) % len(_WAVE)] for s in range(second))


def _opcode(amount: int, hits: int, *reasons: tuple[str, int], errors: int = 0) -> Counters:
    """Return counters: *hits* hits, and requests to the daemon by reason, per unit of *amount*."""
    daemon = sum(number for _, number in reasons)
    return Counters(
        requests=amount * (hits + daemon),
        hits=amount * hits,
        daemon=amount * daemon,
        errors=amount * errors,
        hit_ns=amount * hits * 14_200,
        hit_timed=amount * hits,
        daemon_ns=amount * daemon * 480_000,
        daemon_timed=amount * daemon,
        **{reason: amount * number for reason, number in reasons},
    )


def _path(amount: int, size: int, fast: int, slow: int, ns: int, predicted: bool) -> PathCounters:
    latency = [0] * LATENCIES
    latency[fast] = 98 * amount
    latency[slow] = 2 * amount
    known = 40 * amount if predicted else 0
    return PathCounters(
        chosen=100 * amount,
        requests=100 * amount,
        bytes=100 * amount * size,
        latency=tuple(latency),
        predicted=known,
        predicted_ns=known * ns,
        actual_ns=known * ns * 11 // 10,
        error_ns=known * ns // 8,
    )


def _channels(second: int) -> dict[int, Channel]:
    return {
        cpu: Channel(
            node=cpu // 2,
            slots=4,
            depth=(second + cpu) % 3,
            in_flight=1 + cpu % 2,
            service_ns=48_000 + 2_000 * cpu,
            sleeping=1,
            counters=ChannelCounters(
                sent=400 * (cpu + 1) * _amount(second, cpu),
                stolen=20 * _amount(second),
                poll_hits=95 * second,
                poll_misses=5 * second,
                spin_hits=60 * second,
                spin_misses=40 * second,
                elsewhere=70 * cpu * _amount(second),
                brought=400 * (cpu + 1) * _amount(second, cpu),
            ),
        )
        for cpu in range(4)
    }


def _first(second: int, timing: bool) -> Sample:
    return Sample(
        CONNECTION,
        second * 10**9,
        mountpoint="/mnt/demo",
        state="attached",
        ops="efuse",
        consistency="exclusive",
        exit_info="replace 0 by another",
        waiting=2,
        learned=1200 * second,
        map_full=3,
        maps=(MapUsage("attrs", 500 * second, 65536), MapUsage("entries", 1050 * second, 65536)),
        opcodes={
            "lookup": _opcode(
                _amount(second), 1900, ("miss", 75), ("expired", 20), ("stale", 5), errors=40
            ),
            "getattr": _opcode(_amount(second, 2), 900, ("stale", 12), ("miss", 3)),
            "open": _opcode(_amount(second, 1), 120, ("declined", 30)),
            "read": _opcode(_amount(second, 3), 400, ("unmapped", 12), ("miss", 48)),
            "getxattr": _opcode(_amount(second, 5), 60),
            "readdirplus": _opcode(_amount(second, 6), 0, ("no_handler", 25)),
            "write": _opcode(_amount(second, 7), 3, ("no_handler", 4)),
            "statfs": _opcode(1, 0, ("miss", 2)),
        },
        paths={
            "cache": _path(_amount(second, 1), 4096, 13, 20, 2_400, True),
            "direct": _path(_amount(second, 4), 65536, 24, 31, 19_000, True),
            "daemon": _path(_amount(second, 7), 16384, 44, 52, 480_000, False),
            "device": PathCounters(),
        },
        balance=Balance("least", 2, 1, 50_000),
        channels=_channels(second),
        timing=timing,
    )


def _second(second: int, timing: bool) -> Sample:
    return Sample(
        57,
        second * 10**9,
        mountpoint="/srv/projects/archive/current",
        state="plain",
        consistency="ttl",
        waiting=1,
        opcodes={
            "lookup": _opcode(_amount(second, 4), 0, ("no_handler", 310), errors=9),
            "readlink": _opcode(_amount(second, 5), 0, ("no_handler", 14)),
        },
        paths={"daemon": _path(_amount(second, 2), 131072, 44, 52, 480_000, False)},
        timing=timing,
    )


def _latency(amount: int, first: int, *numbers: int) -> tuple[int, ...]:
    """Return a histogram with *numbers* times *amount* requests in the buckets from *first* on."""
    latency = [0] * BUCKETS
    latency[first : first + len(numbers)] = [amount * number for number in numbers]
    return tuple(latency)


def _third(second: int) -> Sample:
    latency = {
        "getattr": _latency(_amount(second, 8), 7, 40, 160, 60, 12, 2, 0, 0, 0, 1),
        "lookup": _latency(_amount(second, 4), 8, 90, 310, 85, 30, 4, 1),
        "read": _latency(_amount(second, 1), 8, 5, 60, 85, 20, 2, 0, 0, 9, 21, 3),
        "write": _latency(_amount(second, 6), 13, 4, 9, 2),
    }
    errors = {"lookup": 260 * _amount(second, 4)}
    return Sample(
        PLAIN,
        second * 10**9,
        mountpoint="/mnt/plain",
        kind="fuse",
        since_ns=10**9 // 2,
        consistency="none",
        waiting=3,
        opcodes={
            name: Counters(
                requests=sum(buckets),
                daemon=sum(buckets),
                errors=errors.get(name, 0),
                daemon_ns=sum(n * 380 << k for k, n in enumerate(buckets)),
                daemon_timed=sum(buckets),
            )
            for name, buckets in latency.items()
        },
        latency=latency,
    )


def _devices(second: int) -> tuple[DeviceSample, ...]:
    amount = _amount(second, 3)
    counters = DeviceCounters(
        link_read_bytes=amount << 19,
        link_write_bytes=amount << 17,
        media_read_bytes=amount * 11 << 20,
        media_write_bytes=amount << 18,
        core_busy_ns=amount * 160_000_000,
        reads=amount * 830,
        writes=amount * 31,
        commands=amount * 12,
        chosen_device=amount * 9,
        chosen_kernel=amount * 2,
        chosen_policy=amount,
        actual_ns=amount * 1000,
        error_ns=amount * 137,
    )
    return (
        DeviceSample("one", second * 10**9, "/dev/csd0", ("/mnt/files",), 2, counters),
        DeviceSample("spare", second * 10**9, "/dev/csd1"),
    )


def sample(second: int, *, timing: bool = True) -> Snapshot:
    """Return the sample of a second."""
    mounts = (_first(second, timing), _second(second, timing), _third(second))
    return Snapshot(mounts, _devices(second))


def model(seconds: int = 24) -> Model:
    """Return the model after some seconds."""
    made = Model()
    for second in range(seconds + 1):
        made = made.after(sample(second + 1))
    return made
