# SPDX-License-Identifier: LGPL-2.1-or-later
"""The live loop of ``efuse top``: terminal, clock and keys."""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from rich.console import Console

from efuse.stats.snapshot import Snapshot
from efuse.tui.keys import decode
from efuse.tui.state import State

__all__ = ["run"]


class Sampler(Protocol):
    """Function that samples everything. It reads times and map usage only if they are shown."""

    def __call__(self, *, timing: bool, maps: bool) -> Snapshot: ...


@contextmanager
def _single_keys(fd: int) -> Iterator[None]:
    saved = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, saved)


@contextmanager
def _resizes() -> Iterator[int]:
    """Yield a descriptor that becomes readable when the terminal is resized."""
    receiver, sender = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    handler = signal.signal(signal.SIGWINCH, lambda number, frame: None)
    wakeup = signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    try:
        yield receiver
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGWINCH, handler)
        os.close(receiver)
        os.close(sender)


def run(sample: Sampler, *, interval_s: float, console: Console, state: State) -> None:
    """Show what *sample* reads until the user quits, by key or with Ctrl-C.

    Standard input and output have to be a terminal.

    :param interval_s: time between samples, in seconds.
    :param console: the terminal.
    :param state: the state to begin with.
    """
    fd = sys.stdin.fileno()

    def take(state: State) -> State:
        return state.after(sample(timing=state.view.timing, maps=state.view.maps))

    state = take(state)
    due = time.monotonic() + min(interval_s, 0.5)
    with (
        suppress(KeyboardInterrupt),
        _single_keys(fd),
        _resizes() as resized,
        console.screen() as screen,
    ):
        # poll(), not select(): open sysfs files may have pushed descriptors beyond select()'s
        # limit.
        poll = select.poll()
        for each in (fd, resized):
            poll.register(each, select.POLLIN)
        while True:
            width, height = console.size
            screen.update(state.render(interval_s=interval_s, width=width, height=height))
            left_ms = max(0, math.ceil(1000 * (due - time.monotonic())))
            ready = dict(poll.poll(left_ms))
            if resized in ready:
                os.read(resized, 4096)
            if fd in ready:
                keys = decode(os.read(fd, 64)) or ["q"]
                pressed = state.press(keys, width=width, height=height)
                if pressed is None:
                    return
                state = pressed
            if time.monotonic() >= due:
                due = time.monotonic() + interval_s
                if not state.view.paused:
                    state = take(state)
