# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find what else holds an open file of a caller, or watches it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["is_watched", "same_file"]

_libc = ctypes.CDLL(None, use_errno=True)
_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_FILE = 0
_PROC = Path("/proc")


def same_file(thread: int, fd: int) -> dict[int, list[int]]:
    """Return the descriptors of the open file behind a thread's *fd*: by process, or its own.

    Processes that this one may not look into are left out.
    """
    found: dict[int, list[int]] = {}
    process = _process_of(thread)
    name = _link(thread, fd)
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and int(entry.name) != process:
            found[int(entry.name)] = [*_same(thread, fd, name, int(entry.name))]
    found[thread] = [*_same(thread, fd, name, thread)]
    return {where: fds for where, fds in found.items() if fds}


def is_watched(thread: int, fds: Iterator[int] | list[int]) -> bool:
    """Tell whether an epoll set of a thread's process watches one of its descriptors."""
    watched = {*fds}
    with contextlib.suppress(OSError):
        for entry in (_PROC / str(thread) / "fd").iterdir():
            if _link(thread, int(entry.name)) == "anon_inode:[eventpoll]":
                told = (_PROC / str(thread) / "fdinfo" / entry.name).read_text()
                if watched & {int(tfd) for tfd in re.findall(r"^tfd:\s*([0-9]+)", told, re.M)}:
                    return True
    return False


def _same(thread: int, fd: int, name: str, other: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for entry in (_PROC / str(other) / "fd").iterdir():
            at = int(entry.name)
            if _link(other, at) == name and _is_same(thread, fd, other, at):
                yield at


def _process_of(thread: int) -> int:
    told = re.search(rb"^Tgid:\s*([0-9]+)$", (_PROC / str(thread) / "status").read_bytes(), re.M)
    assert told
    return int(told[1])


def _link(process: int, fd: int) -> str:
    try:
        return str((_PROC / str(process) / "fd" / str(fd)).readlink())
    except OSError:
        return ""


def _is_same(process: int, fd: int, other: int, at: int) -> bool:
    number = ctypes.c_long(_KCMP[os.uname().machine])
    first, second = ctypes.c_ulong(fd), ctypes.c_ulong(at)
    return bool(_libc.syscall(number, process, other, _KCMP_FILE, first, second) == 0)
