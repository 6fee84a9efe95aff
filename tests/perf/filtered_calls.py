# SPDX-License-Identifier: LGPL-2.1-or-later
"""Print what the filter of ``efuse run`` adds to system calls of a daemon, in instructions.

In a guest whose clock counts them, as root:
``efuse guest run --icount --cpus 1 -- .venv/bin/python -m tests.perf.filtered_calls``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import termios
from collections.abc import Callable, Mapping

from efuse.supervisor.notifications import install
from tests.perf.measure import count

_TIMES = 2000
_libc = ctypes.CDLL(None)


def _calls(pipe: int) -> Mapping[str, Callable[[], object]]:
    left = bytearray(4)
    return {
        "getppid": _libc.getppid,
        "ioctl": lambda: fcntl.ioctl(pipe, termios.FIONREAD, left),
    }


def main() -> None:
    pipe, _ = os.pipe()
    calls = _calls(pipe)
    before = {name: count(call, _TIMES) for name, call in calls.items()}
    install()
    for name, call in calls.items():
        after = count(call, _TIMES)
        print(f"{name}: {before[name]} -> {after} instructions ({after - before[name]:+d})")


if __name__ == "__main__":
    main()
