# SPDX-License-Identifier: LGPL-2.1-or-later
"""The checks of a debugging kernel, and the leaks that kmemleak has found in it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from tests.debug import races
from tests.guest.support import injection

_DEBUG = Path("/sys/kernel/debug")
_LOCKDEP = Path("/proc/lockdep_stats")
_KMEMLEAK = _DEBUG / "kmemleak"
_HUNG_TASK = Path("/proc/sys/kernel/hung_task_timeout_secs")

# Symbols that exist only in a kernel with the check.
_SYMBOLS = {"KASAN": "kasan_report", "list debugging": "__list_add_valid_or_report"}

# kmemleak reports objects that have this age (MSECS_MIN_AGE) and did not change between two scans.
_LEAST_AGE_S = 5.0
_SCANS = 3

# A line of a backtrace with an address that belongs to no loaded code.
_NAMELESS = re.compile(r"^\s+0x[0-9a-f]+$")


def missing_checks() -> list[str]:
    """Return the names of the checks that the running kernel lacks or has turned off."""
    symbols = {line.split()[2] for line in Path("/proc/kallsyms").read_text().splitlines()}
    missing = [name for name, symbol in _SYMBOLS.items() if symbol not in symbols]
    if not _KMEMLEAK.exists():
        missing.append("kmemleak")
    if not _HUNG_TASK.exists() or not int(_HUNG_TASK.read_text()):
        missing.append("hung tasks")
    if not lockdep_works():
        missing.append("lockdep")
    if not injection.is_supported():
        missing.append("fault injection")
    return missing


def missing(kind: str) -> list[str]:
    """Return the names of the checks that the running kernel lacks or has turned off.

    :param kind: kind of the kernel: ``kasan``, ``kcsan``, or ``plain``, which has no checks.
    """
    if kind == "kasan":
        return missing_checks()
    return ["KCSAN"] if kind == "kcsan" and not races.detectable() else []


def lockdep_works() -> bool:
    """Return whether the kernel checks the lock order; it stops after its first report."""
    if not _LOCKDEP.exists():
        return False
    fields = dict(
        line.split(":", 1) for line in _LOCKDEP.read_text().splitlines() if line.count(":") == 1
    )
    return any(name.strip() == "debug_locks" and int(n) for name, n in fields.items())


@dataclass(frozen=True)
class Leak:
    """A leak: memory to which nothing points.

    :ivar text: kmemleak's report.
    """

    text: str

    def of(self, module: str) -> bool:
        """Return whether code of *module* took part in the allocation."""
        return any(line.endswith(f" [{module}]") for line in self.text.splitlines())

    @property
    def of_unloaded(self) -> bool:
        """Return whether code of a module that is no longer loaded took part in the allocation."""
        return any(_NAMELESS.match(line) for line in self.text.splitlines())


def parse_leaks(text: str) -> list[Leak]:
    """Return the reports in the text of kmemleak's file."""
    begin = "unreferenced object "
    return [Leak(begin + part.rstrip()) for part in text.split(begin)[1:]]


def forget_leaks() -> None:
    """Make kmemleak ignore what has leaked so far.

    :raises OSError: with EBUSY or EPERM: kmemleak has turned itself off.
    """
    _KMEMLEAK.write_text("scan")
    _KMEMLEAK.write_text("clear")


def find_leaks() -> list[Leak]:
    """Scan the memory, and return the leaks.

    :raises OSError: with EBUSY or EPERM: kmemleak has turned itself off.
    """
    for _ in range(_SCANS):
        time.sleep(_LEAST_AGE_S)
        _KMEMLEAK.write_text("scan")
    return parse_leaks(_KMEMLEAK.read_text(errors="replace"))
