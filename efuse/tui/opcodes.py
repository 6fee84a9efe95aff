# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of opcodes in ``efuse top``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from efuse.stats.latency import BUCKETS, Latency
from efuse.stats.model import Counters, MountRates, OpcodeRates
from efuse.tables.columns import HISTORY, MOUNT, number, of_efuse, of_plain, ratio, time, word
from efuse.tables.grid import Column
from efuse.tables.rows import Row, mount_name
from efuse.tables.spark import sparkline
from efuse.tables.text import cut
from efuse.tui.model import Model
from efuse.units import count

__all__ = ["OPCODES", "opcode_rows"]


def _reasons(row: Row[OpcodeRates]) -> str:
    rates = row.what
    total = sum(rates.passed.values())
    parts = [f"{reason} {100 * number / total:.0f}" for reason, number in rates.passed.items()]
    if rates.counters.refused:
        parts.append(f"refused {count(rates.counters.refused)}")
    if rates.counters.errors:
        parts.append(f"errors {count(rates.counters.errors)}")
    return " ".join(parts)


def _pairs(latency: Latency) -> list[int]:
    return [a + b for a, b in zip(latency[::2], latency[1::2], strict=True)]


OPCODES: tuple[Column[Row[Any]], ...] = (
    word(
        "OPCODE",
        lambda r: r.opcode,
        "as in <linux/fuse.h>, in lower case",
        least=11,
        style=lambda row: "cyan",
    ),
    MOUNT,
    number("RATE/s", lambda r: r.per_second, "requests", sort="rate"),
    replace(
        ratio("HIT", lambda r: r.hit_ratio, "answered in the kernel", sort="hits", good=True),
        applies=of_efuse,
    ),
    replace(
        number("DAEMON/s", lambda r: r.daemon_per_second, "sent to the daemon", sort="daemon"),
        applies=of_efuse,
    ),
    replace(
        number(
            "ERR/s", lambda r: r.errors_per_second, "answered with an error", sort="errors", rank=6
        ),
        applies=of_plain,
    ),
    replace(
        time(
            "KERNEL",
            lambda r: r.hit_mean_ns,
            "mean time of kernel answers",
            sort="kernel-time",
            rank=2,
        ),
        applies=of_efuse,
    ),
    time(
        "DAEMON", lambda r: r.daemon_mean_ns, "mean time of the daemon", sort="daemon-time", rank=1
    ),
    replace(
        time("P50", lambda r: r.p50_ns, "half of them were answered within that time", rank=5),
        applies=of_plain,
    ),
    replace(
        time(
            "P99",
            lambda r: r.p99_ns,
            "99 of 100 were answered within that time",
            sort="p99",
            rank=5,
        ),
        applies=of_plain,
    ),
    HISTORY,
    Column(
        "LATENCY",
        "distribution of times: a bar for each power of 4 from 256 ns to 17 s",
        lambda row: sparkline(_pairs(row.what.latency), BUCKETS // 2),
        rank=7,
        left=True,
        style=lambda row: "bright_blue",
        applies=of_plain,
    ),
    Column(
        "PASSED (%)",
        "why requests went to the daemon, in percent of them",
        _reasons,
        rank=3,
        least=10,
        left=True,
        draw=lambda row, width: cut(_reasons(row), width),
        applies=of_efuse,
    ),
)


def opcode_row(model: Model, m: MountRates, rates: OpcodeRates) -> Row[OpcodeRates]:
    """Return the row for one opcode of a mount."""
    owner = m.after.connection
    history = model.history.of("opcode", owner, rates.opcode)
    return Row(rates, history, mount_name(m), owner, m.after.is_plain)


def opcode_rows(model: Model, connection: int | None) -> list[Row[OpcodeRates]]:
    """Return one row for each opcode that was ever requested."""
    rows = []
    for m in model.mounts(connection):
        rows += [opcode_row(model, m, rates) for rates in m.opcodes]
        known = {rates.opcode for rates in m.opcodes}
        idle = sorted(m.after.opcodes.keys() - known)
        rows += [opcode_row(model, m, _idle(opcode)) for opcode in idle]
    return sorted(rows, key=lambda row: row.what.opcode)


def _idle(opcode: str) -> OpcodeRates:
    return OpcodeRates(opcode, 0.0, 0.0, None, {}, None, None, Counters())
