# SPDX-License-Identifier: LGPL-2.1-or-later
"""Format a request as a line of text, or as an object for JSON. Pure: no system calls."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from efuse import display
from efuse.tracing.request import Request
from efuse.units import duration

__all__ = ["as_json", "header", "line"]

WIDE = 96
"""Width in columns from which lines have milliseconds and the name of the caller's thread."""

_NARROWEST = 4  # columns for what a request is about
_COLUMNS = "{:<{}} {:>6} {}{:<11} {:>5} {:<7} {:<10} {:>7} "


def header(width: int | None = None) -> str:
    """Return the titles of the columns.

    :param width: width of the terminal in columns; None for no limit.
    """
    titles = ("PID", _comm("COMM", width), "OPCODE", "INODE", "BY", "WHY", "LATENCY")
    return _COLUMNS.format("TIME", len(_clock(0, width)), *titles) + "NAME"


def line(request: Request, shown: str, *, wall_ns: int, width: int | None = None) -> str:
    """Format *request* as one line.

    :param shown: what the request is about; see `Names.shown`.
    :param wall_ns: offset from the request's CLOCK_MONOTONIC to wall-clock time, in ns.
    :param width: width of the terminal in columns, to which *shown* is cut; None for no limit.
    """
    clock = _clock(request.time_ns + wall_ns, width)
    text = _COLUMNS.format(
        clock,
        len(clock),
        request.pid or "-",
        _comm(request.comm, width),
        request.opcode,
        request.nodeid,
        request.answered_by,
        request.reason or "-",
        duration(request.ns),
    )
    end = f" = {request.error}" if request.error else ""
    room = None if width is None else max(_NARROWEST, width - len(text) - len(end))
    return (text + _cut(display.shown(shown), room) + end).rstrip()


def as_json(request: Request, shown: str, *, wall_ns: int) -> dict[str, Any]:
    """Return *request* as an object for JSON. The parameters are described in `line`."""
    return {
        "time_ns": request.time_ns + wall_ns,
        "connection": request.connection,
        "opcode": request.opcode,
        "nodeid": request.nodeid,
        "names": [os.fsdecode(name) for name in request.names],
        "about": shown,
        "offset": request.offset,
        "size": request.size,
        "other_nodeid": request.other,
        "child_nodeid": request.child,
        "answered_by": request.answered_by,
        "reason": request.reason or None,
        "ret": request.ret,
        "error": request.error or None,
        "latency_ns": request.ns,
        "background": request.background,
        "pid": request.pid,
        "thread": request.thread,
        "uid": request.uid,
        "comm": request.comm,
    }


def _is_wide(width: int | None) -> bool:
    return width is None or width >= WIDE


def _clock(ns: int, width: int | None) -> str:
    clock = f"{datetime.fromtimestamp(ns // 10**9):%H:%M:%S}"
    return f"{clock}.{ns // 10**6 % 1000:03}" if _is_wide(width) else clock


def _comm(text: str, width: int | None) -> str:
    if not _is_wide(width):
        return ""
    return f"{display.shown(text):<15} "


def _cut(text: str, room: int | None) -> str:
    return text if room is None or len(text) <= room else "…" + text[len(text) - room + 1 :]
