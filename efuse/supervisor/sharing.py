# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find what else holds an open file of a caller, or watches it.

All descriptors of the machine are looked at, so this uses text and descriptors, not `pathlib`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["is_another_file", "is_same_file", "is_watched", "own", "same_file"]

_libc = ctypes.CDLL(None, use_errno=True)
_KCMP = {"x86_64": 312, "aarch64": 272}[os.uname().machine]
_KCMP_FILE = 0
_PROC = Path("/proc")


def own(thread: int, fd: int) -> list[int]:
    """Return the descriptors of a thread's process for the open file behind its *fd*."""
    return [*_same(thread, fd, _name(thread, fd), thread)]


def same_file(thread: int, fd: int) -> Iterator[int]:
    """Yield the other processes that hold the open file behind a thread's *fd*.

    Processes that this one may not look into are left out.
    """
    process = _process_of(thread)
    name = _name(thread, fd)
    with os.scandir("/proc") as entries:
        others = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    for other in others:
        if other != process and next(_same(thread, fd, name, other), None) is not None:
            yield other


def is_watched(thread: int, fds: Iterator[int] | list[int]) -> bool:
    """Tell whether an epoll set of a thread's process watches one of its descriptors."""
    watched = {*fds}
    for at, name in _descriptors(thread):
        if name == "anon_inode:[eventpoll]":
            with contextlib.suppress(OSError):
                told = (_PROC / str(thread) / "fdinfo" / str(at)).read_text()
                if watched & {int(tfd) for tfd in re.findall(r"^tfd:\s*([0-9]+)", told, re.M)}:
                    return True
    return False


def is_same_file(process: int, fd: int, other: int, at: int) -> bool:
    """Tell whether descriptors of two processes are of one open file."""
    return _compared(process, fd, other, at) == 0


def is_another_file(process: int, fd: int, other: int, at: int) -> bool:
    """Tell whether descriptors of two processes are of different open files.

    If it is not known, as by a kernel without kcmp(2), it is neither this nor `is_same_file`.
    """
    return _compared(process, fd, other, at) > 0


def _compared(process: int, fd: int, other: int, at: int) -> int:
    number, first, second = ctypes.c_long(_KCMP), ctypes.c_ulong(fd), ctypes.c_ulong(at)
    return int(_libc.syscall(number, process, other, _KCMP_FILE, first, second))


def _descriptors(process: int) -> Iterator[tuple[int, str]]:
    """Yield the descriptors of a process, and what each is open on."""
    with contextlib.suppress(OSError):
        directory = os.open(f"/proc/{process}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries]
            for name in names:
                with contextlib.suppress(OSError):  # it was closed meanwhile
                    yield int(name), os.readlink(name, dir_fd=directory)
        finally:
            os.close(directory)


def _same(thread: int, fd: int, name: str, other: int) -> Iterator[int]:
    for at, found in _descriptors(other):
        if found == name and is_same_file(thread, fd, other, at):
            yield at


def _process_of(thread: int) -> int:
    told = re.search(rb"^Tgid:\s*([0-9]+)$", (_PROC / str(thread) / "status").read_bytes(), re.M)
    assert told
    return int(told[1])


def _name(process: int, fd: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{process}/fd/{fd}").readlink())
    return ""
