# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the user has chosen to see, and how each key changes it. Pure: no terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from efuse.tables.channel_table import CHANNEL_VIEWS, CHANNELS, ChannelView
from efuse.tables.device_table import DEVICES
from efuse.tables.grid import Order, sorts
from efuse.tables.path_table import PATHS
from efuse.tui.model import Key
from efuse.tui.mounts import MOUNTS
from efuse.tui.opcodes import OPCODES

__all__ = ["KEYS", "SORTS", "TABS", "TAB_NAMES", "Shown", "View", "press"]


@dataclass(frozen=True, slots=True)
class TabName:
    """What is known of a tab before anything is read.

    :ivar name: name of the tab.
    :ivar sorts: names by which its rows can be sorted.
    :ivar first: the default among them.
    :ivar timing: whether it shows times, which the kernel measures only while they are read.
    :ivar maps: whether it shows the usage of maps, which takes time to count.
    """

    name: str
    sorts: tuple[str, ...]
    first: str = "rate"
    timing: bool = False
    maps: bool = False


TABS = (
    TabName("mounts", sorts(MOUNTS), maps=True),
    TabName("opcodes", sorts(OPCODES), timing=True),
    TabName("paths", sorts(PATHS), timing=True),
    TabName("channels", sorts(CHANNELS), "node"),
    TabName("devices", sorts(DEVICES), "name"),
)

TAB_NAMES = tuple(tab.name for tab in TABS)

SORTS = ("rate", "hits", "daemon", "errors", "kernel-time", "daemon-time", "p99", "name")
"""Orders for opcodes that exist in every frame. All but ``name`` put the largest first."""

KEYS = (
    ("1 to 5, Tab, Shift-Tab", "another tab"),
    ("s, S, r", "sort by the next or previous column; reverse the order"),
    ("/", "filter by mount or name: Enter keeps it, Esc clears it"),
    ("up, down, PgUp, PgDn", "mark another row; scrolls the table"),
    ("Enter, Esc", "opcodes of a mount, details of an opcode; back"),
    ("n, p, c", "next or previous mount, or all; channels by CPU or node"),
    ("space, q", "pause and continue; quit"),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """The parts of the screen that keys act on.

    :ivar rows: identity of each row of the table, in order.
    :ivar mounts: numbers of the connections.
    :ivar page: number of rows that fit.
    """

    rows: tuple[Key, ...] = ()
    mounts: tuple[int, ...] = ()
    page: int = 1


@dataclass(frozen=True, slots=True)
class View:
    """What is shown, and the state of key input.

    :ivar tab: index of the open tab.
    :ivar orders: order of each tab that is not in its default order, by name.
    :ivar filter: text that the shown rows contain.
    :ivar typing: whether keys are added to the filter.
    :ivar paused: whether sampling is paused.
    :ivar help: whether the help is shown.
    :ivar mount: number of the chosen connection; None for all.
    :ivar channels: kind of rows in the tab of channels.
    :ivar cursor: index of the marked row.
    :ivar detail: identity of the opcode whose details are shown, or None.
    """

    tab: int = 0
    orders: Mapping[str, Order] = field(default_factory=dict)
    filter: str = ""
    typing: bool = False
    paused: bool = False
    help: bool = False
    mount: int | None = None
    channels: ChannelView = "auto"
    cursor: int = 0
    detail: Key | None = None

    @property
    def order(self) -> Order:
        """Order of the rows in the open tab."""
        tab = TABS[self.tab]
        return self.orders.get(tab.name, Order(tab.first))

    @property
    def timing(self) -> bool:
        """Whether the open tab shows times."""
        return TABS[self.tab].timing

    @property
    def maps(self) -> bool:
        """Whether the open tab shows the usage of maps."""
        return TABS[self.tab].maps


def press(view: View, key: str, shown: Shown) -> View | None:
    """Return the view after *key* was pressed, or None if the key quits.

    :param key: a character, or the name of a key from `efuse.tui.keys.decode`.
    """
    if view.typing:
        return _type(view, key)
    if view.help:
        return replace(view, help=False)
    if key == "q":
        return None
    if key in ("?", "h"):
        return replace(view, help=True)
    if key == " ":
        return replace(view, paused=not view.paused)
    if key in _STEPS or (key.isdecimal() and 0 < int(key) <= len(TABS)):
        tab = int(key) - 1 if key.isdecimal() else (view.tab + _STEPS[key]) % len(TABS)
        return replace(view, tab=tab, cursor=0, detail=None)
    if view.detail is not None:
        return replace(view, detail=None) if key in ("esc", "enter", "backspace") else view
    if key in _MOVES:
        return _move(view, key, shown)
    return _change(view, key, shown)


_STEPS = {"tab": 1, "right": 1, "backtab": -1, "left": -1}
_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -1, "pgdn": 1, "home": 0, "end": 0}


def _move(view: View, key: str, shown: Shown) -> View:
    last = max(0, len(shown.rows) - 1)
    if key in ("home", "end"):
        return replace(view, cursor=0 if key == "home" else last)
    step = _MOVES[key] * (shown.page if key.startswith("pg") else 1)
    return replace(view, cursor=max(0, min(last, min(last, view.cursor) + step)))


def _change(view: View, key: str, shown: Shown) -> View:
    match key:
        case "s" | "S":
            return _sort(view, 1 if key == "s" else -1)
        case "r":
            order = replace(view.order, reverse=not view.order.reverse)
            return _ordered(view, order)
        case "/":
            return replace(view, typing=True, filter="", cursor=0)
        case "c":
            following = CHANNEL_VIEWS.index(view.channels) + 1
            return replace(view, channels=CHANNEL_VIEWS[following % len(CHANNEL_VIEWS)], cursor=0)
        case "n" | "p":
            every = (None, *shown.mounts)
            now = every.index(view.mount) if view.mount in every else 0
            chosen = every[(now + (1 if key == "n" else -1)) % len(every)]
            return replace(view, mount=chosen, cursor=0)
        case "enter":
            return _enter(view, shown)
        case "esc" if view.filter:
            return replace(view, filter="", cursor=0)
        case "esc":
            return replace(view, mount=None, cursor=0)
    return view


def _sort(view: View, step: int) -> View:
    every = TABS[view.tab].sorts
    chosen = every[(every.index(view.order.sort) + step) % len(every)]
    return _ordered(view, replace(view.order, sort=chosen))


def _ordered(view: View, order: Order) -> View:
    return replace(view, orders={**view.orders, TABS[view.tab].name: order})


def _enter(view: View, shown: Shown) -> View:
    if not shown.rows:
        return view
    connection, name = shown.rows[min(view.cursor, len(shown.rows) - 1)]
    if TABS[view.tab].name == "mounts":
        return replace(view, tab=1, mount=connection, filter="", cursor=0)
    if TABS[view.tab].name == "opcodes":
        return replace(view, detail=(connection, name))
    return view


def _type(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, typing=False)
    if key == "esc":
        return replace(view, typing=False, filter="")
    if key == "backspace":
        return replace(view, filter=view.filter[:-1])
    typed = len(key) == 1 and key.isprintable()
    return replace(view, filter=view.filter + key, cursor=0) if typed else view
