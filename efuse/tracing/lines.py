# SPDX-License-Identifier: LGPL-2.1-or-later
"""A request as a line of text, or as an object of JSON. Pure: no system call."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from efuse.tracing.request import Request
from efuse.tui.units import duration

__all__ = ["COMM_WIDTH", "as_json", "header", "line"]

COMM_WIDTH = 96
"""From so many columns on the name of the caller's thread is shown, too."""

_NARROWEST = 8  # of what a request is about
_COLUMNS = "{:<12} {:>6} {}{:<11} {:>5} {:<7} {:<10} {:>7} "


def header(width: int | None = None) -> str:
    """Return the titles of the columns.

    :param width: of the terminal; None: a line may be as long as it has to be.
    """
    titles = ("TIME", "PID", _comm("COMM", width), "OPCODE", "INODE", "PATH", "WHY", "LATENCY")
    return _COLUMNS.format(*titles) + "NAME"


def line(request: Request, shown: str, *, wall_ns: int, width: int | None = None) -> str:
    """Return *request* as one line.

    :param shown: what it is about, see `Names.shown`.
    :param wall_ns: what has to be added to its time to make one of the wall's clock.
    :param width: of the terminal; the name is cut to fit. None: nothing is.
    """
    text = _COLUMNS.format(
        _clock(request.time_ns + wall_ns),
        request.pid or "-",
        _comm(request.comm, width),
        request.opcode,
        request.nodeid,
        request.path,
        request.reason or "-",
        duration(request.ns),
    )
    end = f" = {request.error}" if request.error else ""
    room = None if width is None else max(_NARROWEST, width - len(text) - len(end))
    return (text + _cut(_printable(shown), room) + end).rstrip()


def as_json(request: Request, shown: str, *, wall_ns: int) -> dict[str, Any]:
    """Return *request* as an object of JSON; see `line`."""
    return {
        "time_ns": request.time_ns + wall_ns,
        "connection": request.connection,
        "opcode": request.opcode,
        "nodeid": request.nodeid,
        "names": [_decoded(name) for name in request.names],
        "about": _printable(shown),
        "offset": request.offset,
        "size": request.size,
        "other_nodeid": request.other,
        "child_nodeid": request.child,
        "path": request.path,
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


def _decoded(name: bytes) -> str:
    return _printable(os.fsdecode(name))


def _printable(text: str) -> str:
    """Return *text* without what a terminal would obey; such characters become escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _clock(ns: int) -> str:
    moment = datetime.fromtimestamp(ns // 10**9)
    return f"{moment:%H:%M:%S}.{ns // 10**6 % 1000:03}"


def _comm(text: str, width: int | None) -> str:
    if width is not None and width < COMM_WIDTH:
        return ""
    return f"{_printable(text):<15} "


def _cut(text: str, room: int | None) -> str:
    return text if room is None or len(text) <= room else "…" + text[len(text) - room + 1 :]
