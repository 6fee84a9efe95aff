# SPDX-License-Identifier: LGPL-2.1-or-later
"""Everything about one opcode: counters, reasons why requests went to the daemon, and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from efuse.stats.latency import Latency, quantile_ns
from efuse.stats.model import Counters, OpcodeRates
from efuse.tables.grid import Column, grid
from efuse.tables.rows import Row, mount_name
from efuse.tables.spark import bar, sparkline
from efuse.tables.text import Line, line
from efuse.tables.words import bucket_words
from efuse.tui.model import Key, Model
from efuse.tui.opcodes import opcode_rows
from efuse.units import count, duration, share

__all__ = ["REASON_WORDS", "detail_lines", "detail_title"]

_COUNTS = {
    "requests": "made by the kernel",
    "hits": "answered in the kernel",
    "refused": "failed in the kernel by a handler",
    "daemon": "sent to the daemon",
    "errors": "answered by the daemon with an error",
}

REASON_WORDS = {
    "miss": "no map holds the answer",
    "stale": "a change voided the answer",
    "expired": "the daemon's timeout has passed",
    "other_uid": "the answer was learned for another caller",
    "not_alive": "the kernel does not hold the inode",
    "no_handler": "no handler, or the handler passed",
    "declined": "not allowed now (mode, flags, size)",
    "invalid_verdict": "the handler's verdict has no meaning",
    "unmapped": "part of the range has no backing file",
    "failed": "a backing file failed",
}
"""Short description of each of `efuse.stats.model.REASONS`."""


_BAR = 32


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    cells: tuple[str, ...]
    what: str


def detail_title(model: Model, key: Key) -> Line:
    """Return a line that names the opcode and its mount."""
    connection, opcode = key
    found = [mount_name(m) for m in model.change.mounts if m.after.connection == connection]
    name = found[0] if found else "an unmounted file system"
    return line((opcode, "bold cyan"), f"  of {name}  #{connection}")


def detail_lines(model: Model, key: Key, width: int) -> list[Line]:
    """Return the lines about one opcode of a mount. Blank lines may be dropped to save space."""
    connection, opcode = key
    m = next((m for m in model.change.mounts if m.after.connection == connection), None)
    if m is None or opcode not in m.after.opcodes:
        return [line(("no requests", "dim"))]
    row = next(r for r in opcode_rows(model, connection) if r.what.opcode == opcode)
    total = m.after.opcodes[opcode]
    if m.after.is_plain:
        return [
            _history(row, width),
            line(""),
            *_counts(row.what, total, width, ("requests", "errors")),
            line(""),
            *_latencies(row.what, m.after.latency[opcode], total, width),
        ]
    return [
        _history(row, width),
        line(""),
        *_counts(row.what, total, width),
        line(""),
        *_reasons(row.what, total, width),
        line(""),
        *_times(row.what, total, width),
    ]


def _history(row: Row[OpcodeRates], width: int) -> Line:
    label = f"{count(row.what.per_second)}/s"
    most = f"most {count(max(row.history, default=0))}/s"
    room = max(0, min(len(row.history), width - len(label) - len(most) - 4))
    return line(label, "  ", (sparkline(row.history, room), "blue"), "  ", (most, "dim"))


def _table(titles: Sequence[str], rows: Sequence[_Line], width: int) -> list[Line]:
    def number(index: int) -> Column[_Line]:
        return Column(titles[index + 1], "", lambda row: row.cells[index], least=8)

    first: Column[_Line] = Column(titles[0], "", lambda row: row.name, left=True, least=10)
    last: Column[_Line] = Column(
        "", "", lambda row: row.what, left=True, rank=1, style=lambda row: "dim"
    )
    numbers = [number(index) for index in range(len(titles) - 1)]
    return grid((first, *numbers, last), rows, width)


def _counts(
    rates: OpcodeRates, total: Counters, width: int, names: Sequence[str] = tuple(_COUNTS)
) -> list[Line]:
    scale = _scale(rates)
    rows = []
    for name, what in ((name, _COUNTS[name]) for name in names):
        now, ever = getattr(rates.counters, name), getattr(total, name)
        cells = (count(now * scale), _part(now, rates.counters.requests), str(ever))
        rows.append(_Line(name, cells, what))
    return _table(("COUNTER", "RATE/s", "SHARE", "EVER"), rows, width)


def _scale(rates: OpcodeRates) -> float:
    """Return the factor that turns a difference of counters into a rate."""
    return rates.per_second / rates.counters.requests if rates.counters.requests else 0.0


def _part(part: int, whole: int) -> str:
    return share(min(1.0, part / whole) if whole else None)


def _reasons(rates: OpcodeRates, total: Counters, width: int) -> list[Line]:
    now, ever = rates.passed, total.passed
    order = [*now, *(reason for reason in ever if reason not in now)]
    if not order:
        return [line(("no request was passed to the daemon", "dim"))]
    whole = sum(now.values())
    rows = [
        _Line(
            reason,
            (
                count(now.get(reason, 0) * _scale(rates)),
                _part(now.get(reason, 0), whole),
                str(ever.get(reason, 0)),
            ),
            REASON_WORDS[reason],
        )
        for reason in order
    ]
    return _table(("WHY PASSED", "RATE/s", "SHARE", "EVER"), rows, width)


def _times(rates: OpcodeRates, total: Counters, width: int) -> list[Line]:
    if not total.hit_timed and not total.daemon_timed:
        return [line(("no request was timed yet", "dim"))]
    c = rates.counters
    rows = [
        _Line(
            "kernel",
            (duration(c.hit_mean_ns), count(c.hit_timed), duration(total.hit_mean_ns)),
            "answers of handlers and paths",
        ),
        _Line(
            "daemon",
            (duration(c.daemon_mean_ns), count(c.daemon_timed), duration(total.daemon_mean_ns)),
            "from sending to the answer",
        ),
    ]
    return _table(("TIME", "MEAN", "TIMED", "EVER"), rows, width)


def _latencies(rates: OpcodeRates, ever: Latency, total: Counters, width: int) -> list[Line]:
    """Return the distribution of times, in this interval and since counting began."""
    times = [
        _Line(name, (duration(now), duration(whole)), what)
        for name, now, whole, what in (
            ("mean", rates.daemon_mean_ns, total.daemon_mean_ns, "from sending to the answer"),
            ("p50", rates.p50_ns, quantile_ns(ever, 0.5), "half of the requests took no longer"),
            ("p99", rates.p99_ns, quantile_ns(ever, 0.99), "99 of 100 requests took no longer"),
        )
    ]
    found = [bucket for bucket, number in enumerate(ever) if number]
    rows = []
    for bucket in range(found[0], found[-1] + 1) if found else ():
        now = rates.latency[bucket] if rates.latency else 0
        rows.append(
            _Line(
                bucket_words(bucket),
                (count(now * _scale(rates)), _part(ever[bucket], sum(ever)), str(ever[bucket])),
                bar(ever[bucket], max(ever), _BAR),
            )
        )
    return [
        *_table(("TIME", "NOW", "EVER"), times, width),
        line(""),
        *_table(("TOOK", "RATE/s", "SHARE", "EVER"), rows, width),
    ]
