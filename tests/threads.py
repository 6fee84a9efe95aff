# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the threads of a process do now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

__all__ = ["reading_stdin", "system_calls"]


def system_calls(pid: int) -> Iterator[tuple[int, list[str]]]:
    """Yield each thread's ID and the words of its ``/proc/PID/task/TID/syscall``.

    The words are the number of the system call and its arguments, as proc(5) says. A thread that
    ends meanwhile is left out.
    """
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield int(task.name), (task / "syscall").read_text().split()


def reading_stdin(pid: int) -> int:
    """Return the number of threads that wait in a read(2) of standard input."""
    return sum(words[:2] == ["0", "0x0"] for _, words in system_calls(pid))
