# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much of a core `efuse top` needs, with three busy mounts and a refresh per second.

``.venv/bin/python -m tests.perf.top`` measures this in a guest whose clock counts instructions, for
mounts of plain FUSE and of eFuse. Then it measures time on this machine, for plain FUSE (root).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.commands import EFUSE, run_output
from tests.guest.support.daemons import eventually

MOUNTS, REFRESHES = 3, 20
TABS = ("mounts", "opcodes")
_TITLE = b"eFuse top"  # Part of each frame.
_SIZE = struct.pack("HHHH", 24, 80, 0, 0)

# Each pass sends requests of more than ten opcodes to each mount. The sleep between two passes sets
# the load; it does not wait for anything.
_LOAD = """\
import os, sys, time
while True:
    time.sleep(float(sys.argv[1]))
    for root in sys.argv[2:]:
        os.listdir(root)
        for name in ("a", "absent"):
            path = os.path.join(root, name)
            os.path.exists(path)
        with open(path + "-new", "wb") as file:
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
        with open(os.path.join(root, "a"), "rb", buffering=0) as file:
            file.read(4096)
        os.statvfs(root)
        os.unlink(path + "-new")
"""


@contextmanager
def _busy(system: str, pause_s: float) -> Iterator[None]:
    """Keep some mounts of a system busy."""
    with ExitStack() as ends:
        base = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        roots = []
        for number in range(MOUNTS):
            source = base / f"source{number}"
            source.mkdir()
            (source / "a").write_bytes(b"a" * 4096)
            root = base / f"mnt{number}"
            root.mkdir()
            plain = ("--plain",) if system == "fuse" else ("--require",)
            run_output(*EFUSE, "mount", "passthrough", source, root, *plain)
            ends.callback(run_output, "umount", root)
            roots.append(root)
        load = subprocess.Popen([sys.executable, "-c", _LOAD, str(pause_s), *map(str, roots)])
        ends.callback(load.wait)
        ends.callback(load.kill)
        yield
        assert load.poll() is None, "the load has ended"


class _Screen:
    """A terminal whose output is read continuously; counts the frames."""

    def __init__(self, control: int) -> None:
        self.frames = 0
        self._control = control
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: the other side is closed.
            tail = b""
            while part := tail + os.read(self._control, 1 << 16):
                self.frames += part.count(_TITLE)
                tail = part[1 - len(_TITLE) :] if not part.endswith(_TITLE) else b""

    def wait(self, number: int) -> None:
        """Wait for *number* more frames."""
        last = self.frames + number
        eventually(lambda: self.frames >= last, what="a frame", deadline_s=300)


def _ran_ns(pid: int) -> int:
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in threads)


def _taken(tab: str) -> float:
    """Return how much of a core `efuse top` needs while it shows a tab."""
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, _SIZE)
    words = [*EFUSE, "top", "--interval", "1", "--tab", tab]
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(words, stdin=terminal, stdout=terminal, env=environment) as top:
        os.close(terminal)
        screen = _Screen(control)
        screen.wait(2)  # Leave out the costs of the start.
        ran = _ran_ns(top.pid)
        screen.wait(REFRESHES)
        share = (_ran_ns(top.pid) - ran) / (REFRESHES * 1e9)
        os.write(control, b"q")
        assert top.wait(60) == 0
    os.close(control)
    return share


def measure(system: str, pause_s: float) -> None:
    """Measure, and print the results."""
    with _busy(system, pause_s):
        for tab in TABS:
            print(f"{system:6}{tab:8}{100 * _taken(tab):8.2f} % of a core", flush=True)


def main(arguments: list[str]) -> None:
    if arguments:
        # In the guest, sleep: its clock skips time without work, but not time full of work.
        measure(arguments[0], pause_s=0.5)
        return
    again = [sys.executable, "-m", "tests.perf.top"]
    print("in a guest, a core has 10^9 instructions a second:", flush=True)
    for system in ("fuse", "efuse"):
        subprocess.run([*EFUSE, "guest", "run", "--icount", "--", *again, system], check=True)
    print("on this machine:", flush=True)
    measure("fuse", pause_s=0)


if __name__ == "__main__":
    main(sys.argv[1:])
