# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``efuse top`` looks like: values in, something rich can print out."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from efuse.stats.devices import DeviceRates
from efuse.stats.model import MountRates, OpcodeRates
from efuse.tui.channels import channel_lines
from efuse.tui.devices import device_lines
from efuse.tui.lines import line, number_table
from efuse.tui.paths import PATH_HEADERS, path_row
from efuse.tui.units import count, duration, share
from efuse.tui.view import KEYS, View, visible

__all__ = ["render"]

_SORT_COLUMN = {
    "rate": "RATE/s",
    "hits": "HIT",
    "daemon": "DAEMON/s",
    "kernel-time": "KERNEL",
    "daemon-time": "DAEMON",
    "name": "OPCODE",
}
_FRAME_LINES = 6  # header, mount's three lines, the table's head, footer
_EMPTY_LINES = 3  # header, that there is no mount, footer
_DEVICES_PART = 3  # of what is left of a frame, devices have at most one in so many lines


def render(
    model: Sequence[MountRates],
    view: View,
    *,
    interval_s: float,
    width: int = 80,
    height: int | None = None,
    devices: Sequence[DeviceRates] = (),
) -> RenderableType:
    """Return one frame of *model* as *view* wants it, with the *devices* below.

    With a *height* one mount (the view's) is shown in that many lines; without, all are.
    """
    if view.help:
        return _help()
    if height is None:
        mounts = [part for m in model for part in _mount(m, view, None, width)]
        return Group(*mounts, *device_lines(devices, None, width)[0])
    lines: list[RenderableType] = [_header(model, view, interval_s)]
    if model:
        chosen = model[view.mount % len(model)]
        rows = height - _FRAME_LINES
        below, used = device_lines(devices, rows // _DEVICES_PART, width)
        lines += _mount(chosen, view, max(1, rows - used), width)
    else:
        lines.append(line("no eFuse file system is mounted: efuse mount --help"))
        below, _ = device_lines(devices, height - _EMPTY_LINES, width)
    lines += below
    lines.append(_footer(view))
    return Group(*lines)


def _header(model: Sequence[MountRates], view: View, interval_s: float) -> Text:
    which = f"mount {view.mount % len(model) + 1} of {len(model)}" if model else "no mounts"
    return line(
        ("eFuse top", "bold"),
        f"  {which}  every {interval_s:g} s  sorted by {view.sort}",
        " (reversed)" if view.reverse else "",
        "" if view.channels == "auto" else f"  channels: {view.channels}",
        ("  PAUSED", "bold yellow") if view.paused else "",
    )


def _footer(view: View) -> Text:
    if view.typing:
        return line(("filter: ", "bold"), view.filter + "_", ("   Enter keeps, Esc drops", "dim"))
    return line(
        ("s sort  r reverse  / filter", "dim"),
        f": {view.filter}" if view.filter else "",
        ("  c channels  n mount  space pause  h help  q quit", "dim"),
    )


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
        line((name, "bold cyan"), tail, (state, "green" if attached else "yellow"), ends),
        line(
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
    if m.paths:
        drawn = [path_row(row) for row in m.paths]
        lines.append(number_table(PATH_HEADERS, drawn, {"PATH": "magenta"}, left=("PATH",)))
        rows = None if rows is None else max(1, rows - 1 - len(m.paths))
    parts, used = channel_lines(m, view.channels, rows, width)
    lines += parts
    rows = None if rows is None else max(1, rows - used)
    table = visible(m.opcodes, view)
    if table:
        lines.append(_table(table[:rows], view))
    else:
        lines.append(line(("no requests" if not m.opcodes else "no opcode matches", "dim")))
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
    return line(*parts, f"learned {count(sample.learned)}")


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
        ("RATE/s, DAEMON/s, HIT", "requests; sent to the daemon; answered in the kernel"),
        ("KERNEL, DAEMON", "mean time of an answer in the kernel; of the daemon"),
        ("WHY PASSED", "why requests went to the daemon, in percent of them"),
        ("PATH, SHARE", "the ways that READs and WRITEs took; the share of each"),
        ("P50, P99", "time within which half of them, 99 of 100, were answered"),
        ("PREDICTED, ACTUAL, OFF", "mean time counted on; taken; how far single ones differ"),
        ("NODE, CPU", "whose channels: what is sent to one waits there"),
        ("DEPTH, FLIGHT", "requests that wait for the daemon; that it has in slots"),
        ("SERVICE, LOAD", "mean time that it has one; how many it has on the mean"),
        ("POLL, SPIN, SLEEP", "looks that paid: workers', callers'; workers that sleep"),
        ("ELSE/s, STOLEN/s", "sent from there to other channels; read on other CPUs"),
        ("CMD/s, RD/s, WR/s", "what a device is asked: runs of functions; reads; writes"),
        ("IN, OUT, MEDIA, CORES", "to the device; from it; its medium; time of its cores"),
        ("DEV, KERN, POL", "batches sent to it; left to the kernel; said by a policy"),
    ):
        columns.add_row(title, what)
    return Group(
        Text("eFuse top: keys", style="bold"),
        table,
        Text("columns", style="bold"),
        columns,
        Text("any key goes back", style="dim"),
    )
