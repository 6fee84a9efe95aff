# SPDX-License-Identifier: LGPL-2.1-or-later
"""The live part of ``efuse top``: a terminal, a clock and the keys."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from efuse.stats.snapshot import Change, Snapshot, change
from efuse.tui.render import render
from efuse.tui.view import View, press

__all__ = ["Sampler", "run"]

Sampler = Callable[[], Snapshot]


@contextmanager
def _single_keys(fd: int) -> Iterator[None]:
    saved = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, saved)


def _read_keys(fd: int, timeout_s: float) -> list[str]:
    """Wait for keys. An escape sequence (an arrow, say) counts as no key; a lone Esc as Esc."""
    if not select.select([fd], [], [], max(0.0, timeout_s))[0]:
        return []
    data = os.read(fd, 64).decode(errors="replace")
    if data.startswith("\x1b") and len(data) > 1:
        return []
    return list(data or "q")


def run(sample: Sampler, *, interval_s: float, console: Console, view: View) -> None:
    """Show *sample*'s mounts and devices until the person quits.

    Needs a terminal on standard input and output.
    """
    fd = sys.stdin.fileno()
    before = sample()
    model = Change()
    due = time.monotonic() + min(interval_s, 0.5)

    def draw() -> None:
        size = console.size
        frame = render(
            model.mounts,
            view,
            interval_s=interval_s,
            width=size.width,
            height=size.height,
            devices=model.devices,
        )
        live.update(frame, refresh=True)

    with _single_keys(fd), Live(console=console, screen=True, auto_refresh=False) as live:
        draw()
        while True:
            keys = _read_keys(fd, due - time.monotonic())
            for key in keys:
                changed = press(view, key)
                if changed is None:
                    return
                view = changed
            if time.monotonic() >= due:
                due = time.monotonic() + interval_s
                if not view.paused:
                    after = sample()
                    model, before = change(before, after), after
            draw()
