# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a kernel for debugging says of itself, and what kmemleak has found in it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

_DEBUG = Path("/sys/kernel/debug")
_LOCKDEP = Path("/proc/lockdep_stats")
_KMEMLEAK = _DEBUG / "kmemleak"
_HUNG_TASK = Path("/proc/sys/kernel/hung_task_timeout_secs")

# What exists only in a kernel with the check.
_SYMBOLS = {"KASAN": "kasan_report", "list debugging": "__list_add_valid_or_report"}

# kmemleak reports an object that did not change between two scans and is that old (MSECS_MIN_AGE).
_LEAST_AGE_S = 5.0
_SCANS = 3

# A line of a backtrace whose address belongs to no code that is loaded.
_NAMELESS = re.compile(r"^\s+0x[0-9a-f]+$")


def missing_checks() -> list[str]:
    """Return which checks the running kernel lacks, or has turned off."""
    symbols = {line.split()[2] for line in Path("/proc/kallsyms").read_text().splitlines()}
    missing = [name for name, symbol in _SYMBOLS.items() if symbol not in symbols]
    if not _KMEMLEAK.exists():
        missing.append("kmemleak")
    if not _HUNG_TASK.exists() or not int(_HUNG_TASK.read_text()):
        missing.append("hung tasks")
    if not lockdep_works():
        missing.append("lockdep")
    return missing


def lockdep_works() -> bool:
    """Return whether the kernel checks the order of locks: after its first report it does not."""
    if not _LOCKDEP.exists():
        return False
    fields = dict(
        line.split(":", 1) for line in _LOCKDEP.read_text().splitlines() if line.count(":") == 1
    )
    return any(name.strip() == "debug_locks" and int(n) for name, n in fields.items())


@dataclass(frozen=True)
class Leak:
    """Memory that nothing points to.

    :ivar text: kmemleak's report.
    """

    text: str

    def of(self, module: str) -> bool:
        """Was it allocated by way of that module's code?"""
        return any(line.endswith(f" [{module}]") for line in self.text.splitlines())

    @property
    def of_unloaded(self) -> bool:
        """Was it allocated by way of a module that is gone, so that an address has no name now?"""
        return any(_NAMELESS.match(line) for line in self.text.splitlines())


def parse_leaks(text: str) -> list[Leak]:
    """Return the reports in what kmemleak's file says."""
    begin = "unreferenced object "
    return [Leak(begin + part.rstrip()) for part in text.split(begin)[1:]]


def forget_leaks() -> None:
    """Have what is leaked by now not reported.

    :raises OSError: EBUSY or EPERM: kmemleak has turned itself off.
    """
    _KMEMLEAK.write_text("scan")
    _KMEMLEAK.write_text("clear")


def find_leaks() -> list[Leak]:
    """Scan the memory and return what nothing points to.

    :raises OSError: as of `forget_leaks`.
    """
    for _ in range(_SCANS):
        time.sleep(_LEAST_AGE_S)
        _KMEMLEAK.write_text("scan")
    return parse_leaks(_KMEMLEAK.read_text(errors="replace"))
