# SPDX-License-Identifier: LGPL-2.1-or-later
"""Render ``efuse top``: values in, the lines of one frame out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from efuse.tables.grid import grid
from efuse.tables.text import Line, cut, line, text_of, width_of
from efuse.tui.detail import detail_lines, detail_title
from efuse.tui.frame import Frame
from efuse.tui.help import help_lines
from efuse.tui.model import Model
from efuse.tui.tabs import Rows, key_of, rows, tab_of
from efuse.tui.view import TABS, Shown, View

__all__ = ["render", "shown"]

_HEAD = 2  # lines: the tabs, and the scope of the open tab
_FOOT = 1
_FEWEST_ROWS = 4  # rows that have to fit, or else the details of the marked row are dropped


def render(
    model: Model, view: View, *, interval_s: float, width: int = 80, height: int = 24
) -> RenderableType:
    """Return one frame of *model*, as *view* selects, with *height* lines.

    :param interval_s: the chosen time between samples, in seconds.
    """
    room = max(0, height - _HEAD - _FOOT)
    if view.help:
        body, hint = help_lines(view)[:room], ""
    elif view.detail is not None:
        body, hint = _tight(detail_lines(model, view.detail, width), room), ""
    else:
        body, hint = _body(model, view, width, room)
    head = [_tab_bar(view, interval_s, width), _scope(model, view, hint)]
    blanks = [line("")] * (room - len(body))
    return Frame([*head, *body, *blanks, _footer(view, width)][:height])


def _tight(lines: list[Line], room: int) -> list[Line]:
    """Return the lines that fit in *room*. Drop blank lines if not all of them fit."""
    return lines if len(lines) <= room else [drawn for drawn in lines if text_of(drawn)][:room]


def shown(model: Model, view: View, *, width: int = 80, height: int = 24) -> Shown:
    """Return the parts of the screen that keys act on."""
    layout = _lay_out(model, view, width, height - _HEAD - _FOOT)
    return Shown(
        rows=tuple(key_of(row) for row in layout.rows),
        mounts=tuple(m.after.connection for m in model.change.mounts),
        page=layout.page,
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """The parts of a tab.

    :ivar above: lines above the table.
    :ivar rows: all rows of the table.
    :ivar below: lines below the table.
    :ivar cursor: index of the marked row.
    :ivar page: number of rows that fit.
    """

    above: list[Line]
    rows: Rows
    below: list[Line]
    cursor: int
    page: int


def _lay_out(model: Model, view: View, width: int, room: int) -> _Layout:
    tab = tab_of(view)
    found = rows(model, view)
    cursor = max(0, min(view.cursor, len(found) - 1))
    above = tab.above(model, view)
    left = room - len(above) - 1
    below = tab.below(found[cursor], width) if found else []
    if left - len(below) < min(_FEWEST_ROWS, len(found)):
        below = []
    return _Layout(above, found, below, cursor, max(1, left - len(below)))


def _body(model: Model, view: View, width: int, room: int) -> tuple[list[Line], str]:
    """Return the table with the lines around it, and which rows it shows if not all."""
    tab = tab_of(view)
    layout = _lay_out(model, view, width, room)
    every = layout.rows
    if not every:
        return [*layout.above, line((_nothing(model, view), "dim"))][:room], ""
    first = layout.cursor // layout.page * layout.page
    part = every[first : first + layout.page]
    table = grid(
        tab.columns, part, width, every=every, order=view.order, cursor=layout.cursor - first
    )
    which = f"rows {first + 1}-{first + len(part)} of {len(every)}"
    lines = [*layout.above, *table, *layout.below][:room]
    return lines, "" if len(part) == len(every) else which


def _nothing(model: Model, view: View) -> str:
    """Return the reason why a tab has no rows."""
    if view.filter:
        return f"nothing matches {view.filter}"
    began = model.last is not None and (model.last.mounts or model.last.devices)
    if began and not (model.change.mounts or model.change.devices):
        return "the first interval has not passed yet"
    tab, found = tab_of(view), model.mounts(view.mount)
    plain = bool(found) and all(m.after.is_plain for m in found)
    if plain and all(m.after.since_ns is None for m in found) and TABS[view.tab].name == "opcodes":
        return "requests are not counted"
    return tab.of_plain if plain and tab.of_plain else tab.nothing


def _tab_bar(view: View, interval_s: float, width: int) -> Line:
    parts: list[str | tuple[str, str]] = []
    for number, tab in enumerate(TABS):
        here = number == view.tab
        words = f"{number + 1} {tab.name}"
        parts.append((f"[{words}]" if here else f" {words} ", "bold reverse" if here else ""))
    bar = line(*parts)
    ends = f"  every {interval_s:g} s"
    title = "eFuse top  "
    if width_of(bar) + len(title) + len(ends) <= width:
        blanks = width - width_of(bar) - len(title) - len(ends)
        return line((title, "bold"), *bar, " " * blanks, (ends, "dim"))
    return bar


def _scope(model: Model, view: View, hint: str) -> Line:
    """Return a line with the mounts, the rows and the order that are shown."""
    parts: list[str | tuple[str, str]] = []
    if view.paused:
        parts.append(("PAUSED  ", "bold yellow"))
    if view.help:
        words = f"help: keys, and the columns of {TABS[view.tab].name}"
        return line(*parts, (words, "bold"))
    if view.detail is not None:
        return line(*parts, *detail_title(model, view.detail))
    found = model.mounts(view.mount)
    if len(found) == 1:
        m = found[0]
        name = m.after.mountpoint or "(not mounted here)"
        parts.append((cut(name, 40), "cyan"))
        parts.append(f"  #{m.after.connection}  ")
    else:
        parts.append(f"{len(found) or 'no'} mounts  ")
    parts.append(f"sorted by {view.order.sort}{' (reversed)' if view.order.reverse else ''}")
    if view.filter and not view.typing:
        parts.append((f"  filter {view.filter}", "bold"))
    if hint:
        parts.append(f"  {hint}")
    return line(*parts)


def _footer(view: View, width: int) -> Line:
    if view.typing:
        return line(("filter: ", "bold"), view.filter + "_", ("   Enter keeps, Esc clears", "dim"))
    tab = TABS[view.tab].name
    if view.help:
        keys: Sequence[str] = ("any key goes back",)
    elif view.detail is not None:
        keys = ("Esc back", "space pause", "1-5 tabs", "? help", "q quit")
    else:
        own = {"mounts": ("Enter opcodes",), "opcodes": ("Enter details",), "channels": ("c rows",)}
        keys = (
            *("q quit", "? help", "1-5 tabs", "s sort", "r reverse", "/ filter"),
            *own.get(tab, ()),
            *("space pause", "n mount"),
        )
    words = ""
    for key in keys:
        following = f"{words}  {key}" if words else key
        if len(following) > width:
            break
        words = following
    return line((words, "dim"))
