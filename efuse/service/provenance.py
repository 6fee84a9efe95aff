# SPDX-License-Identifier: LGPL-2.1-or-later
"""Prove that what serves a mount was started for it.

A place and a time do not prove it: any program may mount there meanwhile.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from efuse.control import Connection, Mount
from efuse.control.daemon_locks import DaemonLock, holder_of
from efuse.control.daemons import has_open, holders, serving
from efuse.errors import ControlError
from efuse.service.processes import Process
from efuse.supervisor.ancestry import parent_of

__all__ = ["has_made", "left_of", "serves"]

_DEVICES = ("/dev/efuse", "/dev/fuse")


def serves(process: Process, connection: Connection) -> bool:
    """Tell whether a connection is served by what was started.

    :param process: the process that was started first. It may have ended.
    """
    if not _attends(process, connection):
        return False
    try:
        # Last: what attends to it serves it then, and does not only take it over.
        return connection.daemon == "serving"
    except ControlError:  # it has ended
        return False


def has_made(process: Process, mount: Mount) -> bool:
    """Tell whether a mount is of a start, if it was made after that.

    :param process: the process that was started first. It may have ended.
    """
    if mount.is_efuse:
        return _attends(process, Connection(mount.connection))
    # The kernel may not tell which connection a process serves.
    found = serving(mount.connection, "/dev/fuse")
    return any(_descends(int(path.name), process) for path in found)


def _attends(process: Process, connection: Connection) -> bool:
    """Tell whether what was started has the device of a connection, or supervises its daemon."""
    found = {holder_of(connection, DaemonLock.RESTARTING), *holders(connection.id)}
    return any(_descends(pid, process) for pid in found)


def left_of(process: Process, *, proc: Path = Path("/proc")) -> int:
    """Return the id of a process in the background that serves what was mounted; 0: there is none.

    :param process: the process that was started first, and has ended.
    """
    for path in proc.iterdir():
        if not path.name.isdecimal() or not any(has_open(path, device) for device in _DEVICES):
            continue
        if _descends(int(path.name), process):
            return int(path.name)
    return 0


def _descends(pid: int, process: Process) -> bool:
    """Tell whether a process, or one above it, has the mark of another one.

    A daemon may have cleared its environment.
    """
    mark = process.mark.encode()
    while pid > 1:
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return True
        pid = parent_of(pid)
    return False
