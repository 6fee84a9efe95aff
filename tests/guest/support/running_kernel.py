# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel of the guest: its version, its log and its taint word."""

from __future__ import annotations

import os
import platform
import select
from pathlib import Path

LINUX = int(platform.release().split(".")[0])
"""The kernel's major version: 6 or 7."""

CHECKS_ITSELF = Path("/proc/lockdep").exists()
"""Whether this is the kernel of ``make test-debug``, whose structures are larger."""


class KernelLog:
    """The log of the running kernel, from where it was last read, and the taint word."""

    def __init__(self) -> None:
        self._log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._log, 0, os.SEEK_END)

    def new_text(self) -> str:
        """Return what was logged since the last call."""
        lines = []
        while True:
            try:
                record = os.read(self._log, 8192).decode(errors="replace")
            except BlockingIOError:
                return "\n".join(lines)
            except BrokenPipeError:  # The ring buffer was overrun: read on from its oldest record.
                lines.append("(lines of the kernel's log are lost)")
                continue
            lines.append(record.partition(";")[2].partition("\n")[0])

    def wait(self, timeout_s: float) -> None:
        """Wait until the log has new text, at most *timeout_s* seconds."""
        poll = select.poll()
        poll.register(self._log, select.POLLIN)
        poll.poll(timeout_s * 1000)

    @staticmethod
    def taint() -> int:
        return int(Path("/proc/sys/kernel/tainted").read_text())
