# SPDX-License-Identifier: LGPL-2.1-or-later
"""How the person wants to see it, and what each key changes. Pure: no terminal here."""

from dataclasses import dataclass, replace

from efuse.stats.model import OpcodeRates
from efuse.tui.channels import CHANNEL_VIEWS, ChannelView

__all__ = ["KEYS", "SORTS", "View", "press", "visible"]

SORTS = ("rate", "hits", "daemon", "kernel-time", "daemon-time", "name")
"""What rows can be sorted by; all but the name put the largest first."""

KEYS = (
    ("s / S", "sort by the next / previous column"),
    ("r", "reverse the order"),
    ("/", "filter opcodes: type a part of the name, Enter keeps it, Esc drops it"),
    ("c", "channels: as many rows as are sensible, none, one a node, one a CPU"),
    ("n / p", "next / previous mount"),
    ("space", "pause and go on"),
    ("h or ?, q", "this help; quit"),
)


@dataclass(frozen=True, slots=True)
class View:
    """What is shown: order, filter, which mount, and what is going on with the keys."""

    sort: str = "rate"
    reverse: bool = False
    filter: str = ""
    typing: bool = False
    paused: bool = False
    help: bool = False
    mount: int = 0
    channels: ChannelView = "auto"


def press(view: View, key: str) -> View | None:
    """Return the view after *key* was pressed, or None when that means to quit."""
    if key == "\x03":
        return None
    if view.typing:
        return _type(view, key)
    if view.help:
        return replace(view, help=False)
    step = {"s": 1, "S": -1}.get(key)
    if step:
        return replace(view, sort=SORTS[(SORTS.index(view.sort) + step) % len(SORTS)])
    match key:
        case "q":
            return None
        case "r":
            return replace(view, reverse=not view.reverse)
        case "/":
            return replace(view, typing=True, filter="")
        case "c":
            following = CHANNEL_VIEWS.index(view.channels) + 1
            return replace(view, channels=CHANNEL_VIEWS[following % len(CHANNEL_VIEWS)])
        case "n" | "\t":
            return replace(view, mount=view.mount + 1)
        case "p":
            return replace(view, mount=view.mount - 1)
        case " ":
            return replace(view, paused=not view.paused)
        case "h" | "?":
            return replace(view, help=True)
        case "\x1b":
            return replace(view, filter="")
    return view


def _type(view: View, key: str) -> View:
    if key in ("\r", "\n"):
        return replace(view, typing=False)
    if key == "\x1b":
        return replace(view, typing=False, filter="")
    if key in ("\x7f", "\b"):
        return replace(view, filter=view.filter[:-1])
    return replace(view, filter=view.filter + key) if key.isprintable() else view


def visible(rows: tuple[OpcodeRates, ...], view: View) -> list[OpcodeRates]:
    """Return the rows that pass the filter, in the order the view wants."""
    kept = [row for row in rows if view.filter.lower() in row.opcode]
    kept.sort(key=lambda row: row.opcode)
    if view.sort == "name":
        return kept[::-1] if view.reverse else kept
    kept.sort(key=lambda row: _key(row, view.sort), reverse=not view.reverse)
    return kept


def _key(row: OpcodeRates, sort: str) -> float:
    value = {
        "rate": row.per_second,
        "hits": row.hit_ratio,
        "daemon": row.daemon_per_second,
        "kernel-time": row.hit_mean_ns,
        "daemon-time": row.daemon_mean_ns,
    }[sort]
    return -1.0 if value is None else value
