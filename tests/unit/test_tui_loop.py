# SPDX-License-Identifier: LGPL-2.1-or-later
"""The loop of ``efuse top`` on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

# `efuse top` may keep more files open than select(2) supports.
LIVE = """
import os, resource, time
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
from rich.console import Console
from efuse.stats import Counters, DeviceSample, Sample, Snapshot
from efuse.tui import State, run
def sample(*, timing, maps):
    now = time.monotonic_ns()
    name = f"/mnt/timing-{timing}-maps-{maps}"
    opcodes = {"lookup": Counters(requests=now // 1000)}
    device = DeviceSample("one", now, "/dev/csd3")
    return Snapshot((Sample(41, now, name, opcodes=opcodes),), (device,))
run(sample, interval_s=0.2, console=Console(), state=State())
print("ended")
"""


class Terminal:
    """A program on a terminal, and its output."""

    def __init__(self, program: subprocess.Popen[bytes], control: int) -> None:
        self.program = program
        self.seen = b""
        self._control = control

    def type(self, keys: bytes) -> None:
        """Type keys, and discard the output so far."""
        self.seen = b""
        os.write(self._control, keys)

    def resize(self, width: int, height: int) -> None:
        """Resize the terminal, and discard the output so far."""
        self.seen = b""
        fcntl.ioctl(self._control, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.program.send_signal(signal.SIGWINCH)

    def until(self, what: bytes) -> None:
        """Read until the output contains *what*."""
        while what not in self.seen:
            assert select.select([self._control], [], [], 60)[0], self.seen
            self.seen += os.read(self._control, 65536)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    control, terminal = pty.openpty()
    fcntl.ioctl(control, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        # Background processes ignore SIGINT by default.
        ["env", "--default-signal=INT", sys.executable, "-c", LIVE],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment | {"TERM": "xterm"},
    ) as program:
        os.close(terminal)
        try:
            yield Terminal(program, control)
        finally:
            program.kill()
            os.close(control)


def test_loop_draws_obeys_keys_and_restores_the_terminal(terminal: Terminal) -> None:
    terminal.until(b"/mnt/timing")
    assert b"\x1b[?1049h" in terminal.seen
    terminal.type(b"5")
    terminal.until(b"csd3")
    terminal.type(b"2s")
    terminal.until(b"sorted by hits")
    terminal.type(b"q")
    terminal.until(b"ended")
    assert terminal.program.wait(30) == 0
    assert terminal.seen.rindex(b"\x1b[?1049l") < terminal.seen.rindex(b"ended")


def test_loop_ends_on_an_interrupt(terminal: Terminal) -> None:
    terminal.until(b"/mnt/timing")
    terminal.program.send_signal(signal.SIGINT)
    terminal.until(b"ended")
    assert terminal.program.wait(30) == 0


def test_resize_redraws_the_whole_screen(terminal: Terminal) -> None:
    terminal.until(b"eFuse top")
    terminal.type(b" ")
    terminal.until(b"PAUSED")
    terminal.resize(50, 12)
    terminal.until(b"q quit")
    assert b"eFuse top" not in terminal.seen
    terminal.resize(120, 30)
    terminal.until(b"n mount")


def test_loop_reads_times_and_maps_only_while_they_are_shown(terminal: Terminal) -> None:
    terminal.until(b"timing-False-maps-True")
    for key, name in ((b"4", b"timing-False-maps-False"), (b"3", b"timing-True-maps-False")):
        terminal.type(key)
        terminal.until(name)
    terminal.type(b"1")
    terminal.until(b"timing-False-maps-True")
