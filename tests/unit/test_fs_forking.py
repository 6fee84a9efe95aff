# SPDX-License-Identifier: LGPL-2.1-or-later
"""A forked process never goes on in its parent's code."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pyfuse3
import pytest
import trio

from efuse.fs.guard import Guard
from efuse.fs.passthrough.mounts import LowerMounts

_FORKS = """
import os, signal, sys
from efuse.fs.forking import forked
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
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
        ("lambda: os.kill(os.getpid(), 2) or sum(0 for _ in iter(int, 1))", 1, "KeyboardInterrupt"),
        ("lambda: sys.stderr.close() or [].pop()", 1, ""),
    ],
)
def test_forked_process_ends_if_its_function_returns_or_raises(
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


_ASKS = """
import ctypes, os, sys, threading
from efuse.fs import forking
if sys.argv[2] == "old kernel":
    forking._MADV_WIPEONFORK = -1
maker = forking.Maker()
libc = ctypes.CDLL(None)
def asked_by_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(maker.is_this_process()))
    thread.start()
    thread.join()
    return found[0]
assert maker.is_this_process() and asked_by_a_thread()
child = eval(sys.argv[1])()
if child == 0:
    os._exit(10 + maker.is_this_process() + forking.Maker().is_this_process() * 2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert maker.is_this_process()
"""


@pytest.mark.parametrize("kernel", ["new kernel", "old kernel"])
@pytest.mark.parametrize(
    "fork", ["os.fork", "libc.fork", "lambda: libc.syscall(220, 17, 0, 0, 0, 0)"]
)
def test_forked_process_is_not_the_one_that_made_an_object(fork: str, kernel: str) -> None:
    if os.uname().machine == "x86_64":
        fork = fork.replace("220", "56")  # clone(SIGCHLD)
    words = [sys.executable, "-c", _ASKS, fork, kernel]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "12\n"


def test_request_of_the_same_process_asks_for_no_process_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Answers(pyfuse3.Operations):
        async def getattr(self, inode: int, ctx: Any = None) -> pyfuse3.EntryAttributes:
            return pyfuse3.EntryAttributes()

    def fails() -> int:
        raise AssertionError("the process id is asked for")

    guard = Guard(Answers(), failed=print, called=lambda name: None)
    table = LowerMounts()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", fails)
        trio.run(guard.getattr, 1, None)
        table.follow()
    table.close()


_OPENS = """
import os
from efuse.fs.passthrough import mounts
table = mounts.LowerMounts()
made = mounts.Maker
def fails():
    mounts.Maker = made
    raise MemoryError
child = os.fork()
if child == 0:
    mounts.Maker = fails
    try:
        table.follow()
    except MemoryError:
        pass
    else:
        os._exit(1)
    # Whatever is opened now may get a number that the table has closed.
    other = os.open("/dev/null", os.O_RDONLY)
    table.follow()
    table.close()
    os.fstat(other)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_table_that_a_forked_process_could_not_open_at_first_closes_no_other_file() -> None:
    words = [sys.executable, "-c", _OPENS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n", done.stderr
