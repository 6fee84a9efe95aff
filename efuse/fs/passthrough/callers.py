# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find out about the caller of a request what the request does not tell: groups, capabilities.

A caller waits for its request, so its number stands for the same thread meanwhile. Only an abort of
the connection ends the wait.
"""

from __future__ import annotations

import contextlib
import os
from typing import Protocol

from efuse.fs.passthrough import syscalls

__all__ = ["FILE_CAPABILITIES", "Caller", "Callers", "UnknownCallerError"]

FILE_CAPABILITIES = sum(1 << number for number in (0, 1, 2, 3, 4, 9, 27, 32))
"""The capabilities that setfsuid(2) takes from other users than root.

CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID, CAP_LINUX_IMMUTABLE,
CAP_MKNOD, CAP_MAC_OVERRIDE.
"""

_PATH = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class Caller(Protocol):
    """What a request tells of its caller.

    :ivar uid: file-system uid.
    :ivar gid: file-system gid.
    :ivar pid: number of the thread; 0 if the daemon's PID namespace has no number for it.
    """

    @property
    def uid(self) -> int: ...

    @property
    def gid(self) -> int: ...

    @property
    def pid(self) -> int: ...


class UnknownCallerError(Exception):
    """The groups of a caller are unknown. The text says why."""


class Callers:
    """Look callers up in ``/proc``, if that shows the PID namespace of this process."""

    def __init__(self) -> None:
        self._proc = _own_proc()
        self._namespace = self._user_namespace("self")

    def groups(self, caller: Caller) -> list[int]:
        """Return the supplementary groups of a caller.

        :raises UnknownCallerError: they cannot be known.
        :raises OSError: this process has no descriptor or memory left.
        """
        if self._proc is None:
            raise UnknownCallerError("/proc does not show the daemon's PID namespace")
        if caller.pid == 0:
            raise UnknownCallerError("the caller is in another PID namespace than the daemon")
        status = self._status(caller.pid)
        if not status:
            raise UnknownCallerError("its /proc/PID/status cannot be read")
        if not _is_of(status, caller):
            raise UnknownCallerError("the caller acts with credentials of another process")
        return sorted(_numbers(status, b"Groups"))

    def capabilities(self, caller: Caller) -> int:
        """Return the capabilities of a caller with uid 0, a mask in which bit N is capability N.

        The kernel also sends requests of its own as root. It sends requests as root for other
        users, too, if root mounted an overlay above the file system. Both have all capabilities.
        Root in another PID namespace looks the same, and has all of them, too.

        :raises OSError: this process has no descriptor or memory left.
        """
        everything = (1 << 64) - 1
        if caller.pid == 0:
            return everything
        try:
            found = syscalls.effective_capabilities(caller.pid)
        except OSError:
            return 0
        if self._user_namespace(str(caller.pid)) != self._namespace or self._namespace is None:
            found = 0
        if found & FILE_CAPABILITIES == FILE_CAPABILITIES:
            return found
        status = self._status(caller.pid)
        return everything if status and not _is_of(status, caller) else found

    def close(self) -> None:
        """Close the descriptor of ``/proc``."""
        if self._proc is not None:
            os.close(self._proc)
            self._proc = None

    def _status(self, pid: int) -> bytes:
        """Return the content of ``/proc/PID/status``; nothing if ``/proc`` does not show it.

        :raises OSError: this process has no descriptor or memory left.
        """
        if self._proc is None:
            return b""
        try:
            return _content(f"{pid}/status", self._proc)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return b""

    def _user_namespace(self, name: str) -> tuple[int, int] | None:
        if self._proc is not None:
            with contextlib.suppress(OSError):
                found = os.stat(f"{name}/ns/user", dir_fd=self._proc)
                return found.st_dev, found.st_ino
        return None


def _own_proc() -> int | None:
    """Return a descriptor of ``/proc`` if it shows the PID namespace of this process, else None.

    A process has a number in its own namespace and in each one above. ``/proc`` lists the numbers
    from its own namespace on down, so only the ``/proc`` of the process's namespace lists one.
    """
    try:
        proc = os.open("/proc", _PATH)
    except OSError:
        return None
    try:
        if len(_numbers(_content("self/status", proc), b"NSpid")) == 1:
            return proc
    except OSError:
        pass
    os.close(proc)
    return None


def _content(name: str, directory: int) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        content = b""
        while more := os.read(fd, 1 << 16):
            content += more
        return content
    finally:
        os.close(fd)


def _numbers(status: bytes, head: bytes) -> list[int]:
    """Return the numbers in the line of ``/proc/PID/status`` that begins with *head*."""
    start = status.find(b"\n" + head + b":\t")
    if start < 0:
        return []
    start += len(head) + 3
    return [int(number) for number in status[start : status.index(b"\n", start)].split()]


def _is_of(status: bytes, caller: Caller) -> bool:
    """Tell whether the caller acts with the ids that its ``/proc/PID/status`` shows."""
    uids, gids = _numbers(status, b"Uid"), _numbers(status, b"Gid")
    return (uids[-1:], gids[-1:]) == ([caller.uid], [caller.gid])
