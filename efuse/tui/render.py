# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``efuse top`` looks like: values in, something rich can print out."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from efuse.stats.model import MountRates, OpcodeRates
from efuse.tui.view import KEYS, View, visible

__all__ = ["count", "duration", "render", "share"]

_SORT_COLUMN = {
    "rate": "RATE/s",
    "hits": "HIT",
    "daemon": "DAEMON/s",
    "kernel-time": "KERNEL",
    "daemon-time": "DAEMON",
    "name": "OPCODE",
}
_FRAME_LINES = 6  # header, mount's three lines, the table's head, footer


def count(value: float) -> str:
    """Return a rate or count in at most six characters: ``0.50``, ``12``, ``12.3k``, ``1.2M``."""
    if value == 0:
        return "0"
    if value < 10:
        return f"{value:.2f}".removesuffix(".00")
    for unit, factor in (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        scaled = value / factor
        if scaled < 999.5:
            return f"{scaled:.1f}{unit}" if unit and scaled < 99.95 else f"{scaled:.0f}{unit}"
    return f"{value:.0e}"


def share(value: float | None) -> str:
    """Return a ratio of 0 to 1 as a percentage; a dash for None. Only exact ends say 0 or 100."""
    if value is None:
        return "-"
    if 0.999 < value < 1:
        return "99.9%"
    if 0 < value < 0.001:
        return "<0.1%"
    return f"{value:.0%}" if value in (0, 1) else f"{value:.1%}"


def duration(ns: float | None) -> str:
    """Return a time in at most seven characters; a dash for None."""
    if ns is None:
        return "-"
    for unit, factor in (("ns", 1), ("us", 1e3), ("ms", 1e6), ("s", 1e9)):
        scaled = ns / factor
        if scaled < 999.5 or unit == "s":
            return (
                f"{scaled:.1f} {unit}" if unit != "ns" and scaled < 10 else f"{scaled:.0f} {unit}"
            )
    raise AssertionError


def render(
    model: Sequence[MountRates],
    view: View,
    *,
    interval_s: float,
    width: int = 80,
    height: int | None = None,
) -> RenderableType:
    """Return one frame of *model* as *view* wants it.

    With a *height* one mount (the view's) is shown in that many lines; without, all are.
    """
    if view.help:
        return _help()
    if height is None:
        return Group(*(part for m in model for part in _mount(m, view, None, width))) or ""
    lines: list[RenderableType] = [_header(model, view, interval_s)]
    if model:
        chosen = model[view.mount % len(model)]
        lines += _mount(chosen, view, max(1, height - _FRAME_LINES), width)
    else:
        lines.append(Text("no eFuse file system is mounted: efuse mount --help"))
    lines.append(_footer(view))
    return Group(*lines)


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _header(model: Sequence[MountRates], view: View, interval_s: float) -> Text:
    which = f"mount {view.mount % len(model) + 1} of {len(model)}" if model else "no mounts"
    return _line(
        ("eFuse top", "bold"),
        f"  {which}  every {interval_s:g} s  sorted by {view.sort}",
        " (reversed)" if view.reverse else "",
        ("  PAUSED", "bold yellow") if view.paused else "",
    )


def _footer(view: View) -> Text:
    if view.typing:
        return _line(("filter: ", "bold"), view.filter + "_", ("   Enter keeps, Esc drops", "dim"))
    kept = f"  (filter: {view.filter})" if view.filter else ""
    return _line(("s sort  r reverse  / filter  n mount  space pause  h help  q quit", "dim"), kept)


def _mount(m: MountRates, view: View, rows: int | None, width: int) -> list[RenderableType]:
    sample = m.after
    attached = sample.state == "attached"
    name = sample.mountpoint or "(not mounted here)"
    tail = f"  #{sample.connection}  "
    state = f"{sample.ops} attached" if attached else "plain"
    ends = f"  {sample.consistency}  {sample.waiting} waiting"
    room = max(8, width - len(tail + state + ends))
    if len(name) > room:
        name = "..." + name[3 - room :]
    total = m.total
    lines: list[RenderableType] = [
        _line((name, "bold cyan"), tail, (state, "green" if attached else "yellow"), ends),
        _line(
            ("total ", "dim"),
            f"{count(total.per_second)}/s",
            ("  hit ", "dim"),
            (share(total.hit_ratio), _ratio_style(total.hit_ratio)),
            ("  daemon ", "dim"),
            f"{count(total.daemon_per_second)}/s",
            ("  kernel ", "dim"),
            duration(total.hit_mean_ns),
            ("  daemon ", "dim"),
            duration(total.daemon_mean_ns),
        ),
        _maps(m),
    ]
    table = visible(m.opcodes, view)
    if table:
        lines.append(_table(table[:rows], view))
    else:
        lines.append(_line(("no requests" if not m.opcodes else "no opcode matches", "dim")))
    return lines


def _maps(m: MountRates) -> Text:
    sample = m.after
    parts: list[str | tuple[str, str]] = [("maps ", "dim")]
    if sample.map_full:
        parts.append((f"FULL {count(sample.map_full)}  ", "bold red"))
    if sample.garbage:
        parts.append((f"GARBAGE {count(sample.garbage)}  ", "bold red"))
    for usage in sample.maps:
        parts.append((f"{usage.name} {share(usage.ratio)}  ", "red" if usage.ratio > 0.95 else ""))
    return _line(*parts, f"learned {count(sample.learned)}")


def _ratio_style(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return "green" if ratio >= 0.9 else "yellow" if ratio >= 0.5 else "red"


def _table(rows: Sequence[OpcodeRates], view: View) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    mark = _SORT_COLUMN[view.sort]
    for title, width in (
        ("OPCODE", 15),
        ("RATE/s", 7),
        ("HIT", 6),
        ("DAEMON/s", 8),
        ("KERNEL", 7),
        ("DAEMON", 7),
        ("WHY PASSED (%)", None),
    ):
        table.add_column(
            Text(title, style="reverse" if title == mark else ""),
            width=width,
            ratio=1 if width is None else None,
            justify="left" if title in ("OPCODE", "WHY PASSED (%)") else "right",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        table.add_row(
            Text(row.opcode, style="cyan"),
            count(row.per_second),
            Text(share(row.hit_ratio), style=_ratio_style(row.hit_ratio)),
            count(row.daemon_per_second),
            duration(row.hit_mean_ns),
            duration(row.daemon_mean_ns),
            _reasons(row),
        )
    return table


def _reasons(row: OpcodeRates) -> str:
    total = sum(row.passed.values())
    parts = [f"{reason} {100 * number / total:.0f}" for reason, number in row.passed.items()]
    if row.counters.refused:
        parts.append(f"refused {count(row.counters.refused)}")
    if row.counters.errors:
        parts.append(f"errors {count(row.counters.errors)}")
    return " ".join(parts)


def _help() -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for key, what in KEYS:
        table.add_row(key, what)
    columns = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    columns.add_column(no_wrap=True, style="bold")
    columns.add_column()
    for title, what in (
        ("RATE/s", "requests that the kernel made"),
        ("HIT", "share answered in the kernel"),
        ("DAEMON/s", "requests sent to the daemon"),
        ("KERNEL", "mean time of an answer in the kernel"),
        ("DAEMON", "mean time of an answer of the daemon"),
        ("WHY PASSED", "why requests went to the daemon, in percent of them"),
    ):
        columns.add_row(title, what)
    return Group(
        Text("eFuse top: keys", style="bold"),
        table,
        Text(),
        Text("columns", style="bold"),
        columns,
        Text(),
        Text("any key goes back", style="dim"),
    )
