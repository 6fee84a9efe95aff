# SPDX-License-Identifier: LGPL-2.1-or-later
"""Count what the filter of ``efuse run`` adds to system calls of a daemon, in instructions.

It fails if that is more than the entry to a system call that the kernel looks at at all, and for
ioctl(2) the filter in addition. `tests/unit/test_supervisor_filter.py` shows that the kernel runs
the filter for no other call. In a guest whose clock counts them, as root:
``efuse guest run --icount --cpus 1 -- .venv/bin/python -m tests.perf.filtered_calls``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
import termios
from collections.abc import Callable, Mapping

from efuse.supervisor.notifications import install
from tests.perf.measure import count

_TIMES = 2000
_MOST = {"getppid": 500, "ioctl": 1000}
_libc = ctypes.CDLL(None)


def _calls(pipe: int) -> Mapping[str, Callable[[], object]]:
    left = bytearray(4)
    return {
        "getppid": _libc.getppid,
        "ioctl": lambda: fcntl.ioctl(pipe, termios.FIONREAD, left),
    }


def main() -> int:
    """Print the figures, and return how many are too large."""
    failed = 0
    pipe, _ = os.pipe()
    calls = _calls(pipe)
    before = {name: count(call, _TIMES) for name, call in calls.items()}
    install()
    for name, call in calls.items():
        after = count(call, _TIMES)
        added = after - before[name]
        print(f"{name}: {before[name]} -> {after} instructions ({added:+d}; at most {_MOST[name]})")
        failed += added > _MOST[name]
    return failed


if __name__ == "__main__":
    sys.exit(main())
