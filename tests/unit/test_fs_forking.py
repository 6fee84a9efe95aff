# SPDX-License-Identifier: LGPL-2.1-or-later
"""A forked process never goes on in its parent's code."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FORKS = """
import os, sys
from efuse.fs.forking import forked
child = eval(sys.argv[1])
try:
    pid = forked(child)
    print("on", flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
except BaseException as error:
    print(repr(error), flush=True)
"""


@pytest.mark.parametrize(
    ("child", "status", "logged"),
    [
        ("lambda: 0", 0, ""),
        ("lambda: 7", 7, ""),
        ("lambda: [].pop()", 1, "IndexError"),
        ("lambda: sys.exit(5)", 1, "SystemExit"),
        ("lambda: os.kill(os.getpid(), 2)", 1, "KeyboardInterrupt"),
        ("lambda: sys.stderr.close() or [].pop()", 1, ""),
    ],
)
def test_forked_process_ends_however_its_function_does(
    child: str, status: int, logged: str
) -> None:
    words = [sys.executable, "-c", _FORKS, child]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"on\n{status}\n"
    assert logged in done.stderr
    assert bool(logged) == bool(done.stderr)


def test_failing_fork_raises_in_the_parent() -> None:
    limited = "import os\ndef none(): raise OSError(11, 'x')\nos.fork = none\n"
    words = [sys.executable, "-c", limited + _FORKS, "lambda: 0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "BlockingIOError(11, 'x')\n"
