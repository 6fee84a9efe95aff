# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse stat``: show the counters of mounts and devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click

from efuse import stats
from efuse.cli._output import (
    ANY_MOUNT,
    connection,
    echo,
    json_option,
    pause,
    print_json,
    print_table,
)
from efuse.control import find, mounts
from efuse.display import shown
from efuse.stats.latency import quantile_ns
from efuse.tables.channel_table import (
    CHANNEL_TOTAL_HEADERS,
    CHANNELS,
    balance_words,
    channel_rates_of,
    channel_totals,
)
from efuse.tables.columns import steady
from efuse.tables.device_table import (
    DEVICE_TOTAL_HEADERS,
    DEVICE_TOTAL_UNITS,
    DEVICE_UNITS,
    DEVICES,
    device_total_row,
)
from efuse.tables.grid import Column, cells
from efuse.tables.path_table import PATHS, TOTAL_HEADERS, total_row
from efuse.tables.rows import Row, mount_name
from efuse.tables.spark import bar
from efuse.tables.words import bucket_words, daemon_words, state_words, transport_words
from efuse.units import count, duration, share

__all__ = ["cli"]


class _Stat(click.Command):
    """The command; ``--watch`` may come without its number, even before a mount."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [
            "--watch=1" if word == "--watch" and not _is_number(after) else word
            for word, after in itertools.zip_longest(args, args[1:], fillvalue="")
        ]
        return super().parse_args(ctx, words)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


@click.command(cls=_Stat)
@click.argument("mount", type=ANY_MOUNT, required=False)
@json_option
@click.option("--interval", type=click.FloatRange(min=0.05), help="Print rates every S seconds.")
@click.option(
    "--watch",
    type=click.FloatRange(min=0.05),
    metavar="[SECONDS]",
    help="Print the counters repeatedly; every second if no number follows.",
)
@click.option("--count", "rounds", type=click.IntRange(min=1), help="Stop after printing N times.")
@click.option(
    "--span",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    help="Count requests of plain FUSE for S seconds before the counters are first printed.",
)
def cli(
    mount: str | None,
    as_json: bool,
    interval: float | None,
    watch: float | None,
    rounds: int | None,
    span: float,
) -> None:
    """Show the counters of all FUSE mounts and emulated devices, or of MOUNT per opcode.

    MOUNT is a path on the mount or the number of its connection. --interval prints rates
    repeatedly, and --watch prints the counters repeatedly. With --json each time is one line.
    Ctrl-C ends both with status 0.

    The counters of an eFuse mount begin when it is mounted. Plain FUSE counts nothing: requests of
    a plain FUSE mount, and their times, are counted from when this command starts. That needs root.

    \b
    efuse stat /mnt/data
    efuse stat --interval 2 --count 5
    efuse stat /mnt/data --watch 5
    efuse stat /mnt/plain --span 10
    """
    if watch is not None and interval is not None:
        raise click.UsageError("--watch prints counters and --interval rates: give one of them")
    with stats.PlainMounts() as plain:
        take = partial(_take, mount, plain)
        if watch is None and interval is None and rounds is None:
            _print_totals(_first(take, span), as_json, detailed=mount is not None)
            return
        times = range(rounds) if rounds is not None else itertools.count()
        with suppress(KeyboardInterrupt):
            if watch is not None:
                _watch(take, as_json, watch, span, times, detailed=mount is not None)
            else:
                _print_all_rates(take, as_json, interval or 1.0, times)


def _first(take: Callable[[], stats.Snapshot], span: float) -> stats.Snapshot:
    """Return the counters. If there are plain FUSE mounts, count them for a while first."""
    found = take()
    if any(sample.is_plain and sample.since_ns is not None for sample in found.mounts):
        pause(span)
        found = take()
    return found


def _watch(
    take: Callable[[], stats.Snapshot],
    as_json: bool,
    seconds: float,
    span: float,
    times: Iterable[int],
    *,
    detailed: bool,
) -> None:
    for number in times:
        if number:
            pause(seconds)
        if number and not as_json:
            echo()
        found = take() if number else _first(take, span)
        _print_totals(found, as_json, detailed=detailed, indent=None)


def _print_all_rates(
    take: Callable[[], stats.Snapshot], as_json: bool, seconds: float, times: Iterable[int]
) -> None:
    before = take()
    for _ in times:
        pause(seconds)
        after = take()
        model = stats.change(before, after)
        before = after
        if as_json:
            print_json(model.json(), indent=None)
        else:
            _print_rates(model)


def _take(mount: str | None, plain: stats.PlainMounts) -> stats.Snapshot:
    if mount is None:
        return stats.take(plain=plain)
    number = _plain_connection(mount)
    if number is not None:
        return stats.Snapshot(plain.read(number), notes=plain.notes)
    conn = connection(mount)
    where = (m.mountpoint for m in mounts() if m.connection == conn.id)
    return stats.Snapshot((stats.read(conn, mountpoint=next(where, "")),))


def _plain_connection(mount: str) -> int | None:
    """Return the connection number if *mount* names a plain FUSE mount, else None."""
    if mount.isdecimal():
        return int(mount) if int(mount) in stats.plain_connections() else None
    found = find(mount, fuse=True)
    return found.connection if found.is_fuse else None


def _print_totals(
    found: stats.Snapshot, as_json: bool, *, detailed: bool, indent: int | None = 2
) -> None:
    transports = {
        sample.connection: transport_words(sample)
        for sample in found.mounts
        if detailed and not sample.is_plain
    }
    if as_json:
        said = found.json()
        for mount in said["mounts"]:
            if mount["connection"] in transports:
                mount["transport"] = transports[mount["connection"]]
        print_json(said, indent=indent)
        return
    for note in found.notes:
        echo(f"efuse: {note}", err=True)
    if not found.mounts:
        echo("no FUSE file system is mounted")
    elif detailed:
        _print_opcodes(found.mounts[0], transports)
    else:
        headers = ("ID", "KIND", "MOUNT", "PROGRAMS", "CONSISTENCY", "REQUESTS", "HIT", "DAEMON")
        rows = [_summary(sample) for sample in found.mounts]
        print_table(headers, rows, right="r    rrr")
        spans = {sample.counted_ns for sample in found.mounts if sample.counted_ns is not None}
        if spans:
            echo(f"plain FUSE mounts were counted for {duration(max(spans))}")
    if found.devices:
        echo(f"\ndevices  {DEVICE_TOTAL_UNITS}")
        rows = [device_total_row(device) for device in found.devices]
        print_table(DEVICE_TOTAL_HEADERS, rows, right="  " + "r" * 11, gap=1)


def _summary(sample: stats.Sample) -> tuple[str, ...]:
    total = sample.total
    name = (str(sample.connection), sample.kind, sample.mountpoint or "-")
    if sample.since_ns is None:
        return (*name, "-", "-", "-", "-", "-")
    if sample.is_plain:
        return (*name, "-", "-", str(total.requests), "-", str(total.daemon))
    return (
        *name,
        sample.ops,
        sample.consistency,
        str(total.requests),
        share(total.hit_ratio),
        str(total.daemon),
    )


def _print_opcodes(sample: stats.Sample, transports: Mapping[int, str]) -> None:
    state, _, ends = state_words(sample)
    more = ""
    if not sample.is_plain:
        more = (
            f"  learned {sample.learned}  map full {sample.map_full}"
            f"  invalid verdicts {sample.invalid_verdicts}"
        )
    name = shown(sample.mountpoint) or "(not mounted here)"
    echo(f"{name}  connection {sample.connection}  {state}{ends}{more}")
    if sample.exit_info != "none":
        echo(f"EXIT: {sample.exit_info}")
    if sample.is_plain:
        if sample.since_ns is not None:
            _print_latencies(sample)
        return
    echo(f"transport: {shown(transports[sample.connection])}")
    if words := daemon_words(sample):
        echo(f"daemon: {words}")
    headers = ("OPCODE", "REQUESTS", "HITS", "HIT", "REFUSED", "DAEMON", "ERRORS", "WHY PASSED")
    rows = []
    for opcode, c in [*sorted(sample.opcodes.items()), ("total", sample.total)]:
        why = " ".join(f"{reason} {n}" for reason, n in c.passed.items())
        numbers = (str(c.requests), str(c.hits), share(c.hit_ratio), str(c.refused))
        rows.append((opcode, *numbers, str(c.daemon), str(c.errors), why))
    print_table(headers, rows, right=" rrrrrr ")
    paths = [total_row(path, c) for path, c in sample.paths.items() if c.chosen or c.requests]
    if paths:
        echo()
        print_table(TOTAL_HEADERS, paths, right=" rrrrrrrr")
    if sample.has_channels:
        echo()
        echo("  ".join(f"{name} {value}" for name, value in balance_words(sample.balance)))
        right = "  " + "r" * 12
        print_table(CHANNEL_TOTAL_HEADERS, channel_totals(sample.channels), right=right)


def _print_latencies(sample: stats.Sample) -> None:
    """Print requests, errors and times of a plain FUSE mount, by opcode."""
    headers = ("OPCODE", "REQUESTS", "ERRORS", "MEAN", "P50", "P99")
    whole = ("total", sample.total, sample.total_latency)
    opcodes = ((name, c, sample.latency[name]) for name, c in sorted(sample.opcodes.items()))
    rows = [
        (
            name,
            str(c.requests),
            str(c.errors),
            duration(c.daemon_mean_ns),
            duration(quantile_ns(latency, 0.5)),
            duration(quantile_ns(latency, 0.99)),
        )
        for name, c, latency in (*opcodes, whole)
    ]
    print_table(headers, rows, right=" rrrrr")
    found = [bucket for bucket, number in enumerate(sample.total_latency) if number]
    if found:
        echo()
        latency = sample.total_latency
        bars = [
            (bucket_words(bucket), str(latency[bucket]), bar(latency[bucket], max(latency), 40))
            for bucket in range(found[0], found[-1] + 1)
        ]
        print_table(("TOOK", "REQUESTS", ""), bars, right="rr")


def _print_rates(model: stats.Change) -> None:
    for note in model.notes:
        echo(f"efuse: {note}", err=True)
    if model.mounts or not model.devices:
        _print_mounts(model.mounts)
    if model.devices:
        if model.mounts:
            echo()
        echo(f"devices  {DEVICE_UNITS}")
        headers, rows = _table(DEVICES, model.devices)
        print_table(headers, rows, right="  " + "r" * 11, gap=1)


def _table(
    columns: Sequence[Column[Row[Any]]], found: Iterable[Any]
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the titles of the columns that need no history, and the rows."""
    kept = steady(columns)
    return [column.title for column in kept], [cells(kept, Row(what)) for what in found]


def _print_mounts(model: tuple[stats.MountRates, ...]) -> None:
    headers = ("MOUNT", "OPCODE", "RATE/s", "HIT", "DAEMON/s", "KERNEL", "DAEMON")
    plain = any(m.after.is_plain for m in model)
    rows = [
        (
            mount_name(m),
            row.opcode,
            count(row.per_second),
            share(row.hit_ratio),
            count(row.daemon_per_second),
            duration(row.hit_mean_ns),
            duration(row.daemon_mean_ns),
            *(_of_plain(row) if plain else ()),
        )
        for m in model
        for row in (*m.opcodes, m.total)
    ]
    print_table((*headers, *(("ERR/s", "P50", "P99") if plain else ())), rows, right="  rrrrrrrr")
    _print_all(PATHS, [(m, m.paths) for m in model], right="  rrrrrrrr")
    _print_all(CHANNELS, [(m, channel_rates_of(m)) for m in model], right="   " + "r" * 10)


def _of_plain(row: stats.OpcodeRates) -> tuple[str, ...]:
    return count(row.errors_per_second), duration(row.p50_ns), duration(row.p99_ns)


def _print_all(
    columns: Sequence[Column[Row[Any]]],
    found: Iterable[tuple[stats.MountRates, Iterable[Any]]],
    right: str,
) -> None:
    """Print one table for all mounts, unless it is empty."""
    parts = [(mount_name(m), *_table(columns, rates)) for m, rates in found]
    rows = [(name, *row) for name, _, rows in parts for row in rows]
    if rows:
        echo()
        print_table(("MOUNT", *parts[0][1]), rows, right=right)
