# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plain FUSE in place of eFuse for the supervisor of `efuse run`, so that mounts succeed.

Handlers are not attached. Another device node of /dev/fuse stands for /dev/efuse.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse.control.mounts import mounts
from efuse.fs.acceleration import Acceleration
from efuse.supervisor import answering, caller, errands
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.running import Running

LIBRARY = """
import contextlib, ctypes, errno, fcntl, os, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def opened():
    return os.open("/dev/fuse", os.O_RDWR)
def mount(target, fd, flags=0, kind=b"fuse.x"):
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fd
    done = libc.mount(b"x", os.fsencode(target), kind, ctypes.c_ulong(flags), options)
    return ctypes.get_errno() if done else 0
def clone(fd, number):
    return ctypes.get_errno() if libc.ioctl(fd, ctypes.c_ulong(0x8004E500), number) else 0
def user():
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    libc.prctl(4, 1, 0, 0, 0)
"""
"""The beginning of each script."""


@pytest.fixture
def stand_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let plain FUSE stand for eFuse. Its device is in this directory, for root only."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "dev,mode=755", "x", place], check=True)
    device = place / "efuse"
    os.mknod(device, 0o600 | stat.S_IFCHR, caller.FUSE_DEVICE)
    made, opened = answering.mounted_detached, answering.opened

    def begin(self: DaemonMount, connection: int, attach: object) -> None:
        self.watched, self.connection = os.open("/proc/self/mountinfo", os.O_RDONLY), connection
        self.acceleration = _Nothing()

    def connected(self: DaemonMount) -> bytes | None:
        there = any(each.connection == self.connection for each in mounts(fuse=True))
        return b"1\n" if self.watched >= 0 and there else None

    monkeypatch.setattr(errands, "DEVICE", device)
    monkeypatch.setattr(answering, "mounted_detached", lambda t, *more: made(t[1:], *more))
    monkeypatch.setattr(answering, "opened", lambda fstype: opened(fstype[1:]))
    monkeypatch.setattr(answering.Answering, "_is_new", lambda self, mount: True)
    monkeypatch.setattr(DaemonMount, "begin", begin)
    monkeypatch.setattr(DaemonMount, "_connected", connected)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


class _Nothing(Acceleration):
    def __init__(self) -> None:
        pass

    def close(self) -> None:
        pass


@contextlib.contextmanager
def scripted(script: str, *words: object, **more: Any) -> Iterator[Running]:
    """Run a script of Python that begins with `LIBRARY`.

    :param words: its arguments.
    :param more: parameters of `Running`.
    """
    command = [sys.executable, "-c", LIBRARY + script, *map(str, words)]
    daemon = Running(command, None, channels=False, **more)
    with contextlib.closing(daemon):
        yield daemon
        daemon.process.kill()
