# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the daemon of a mount among the processes of this machine."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from efuse.control.mounts import Mount

__all__ = ["command_of", "connection_of", "has_open", "holders", "serving"]

_PROC = Path("/proc")


def serving(connection: int, device: str, *, proc: Path = _PROC) -> Iterator[Path]:
    """Yield the directory in /proc of each process that may serve a connection.

    That is one with *device* open. Kernels before 6.17 do not show which connection a descriptor of
    /dev/fuse serves: then, daemons of other connections are among them. The module shows it for
    each of /dev/efuse.

    :param connection: number of the connection.
    :param device: ``/dev/fuse`` or ``/dev/efuse``.
    """
    for process in proc.iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                if any(_serves(fd, connection, device) for fd in (process / "fd").iterdir()):
                    yield process


def holders(connection: int, *, proc: Path = _PROC) -> set[int]:
    """Return the processes that certainly serve an eFuse connection.

    :param connection: number of the connection.
    """
    return {
        int(process.name)
        for process in proc.iterdir()
        if process.name.isdecimal() and connection in _connections_of(process)
    }


def _connections_of(process: Path) -> set[int]:
    """Return the connections that a process serves, as far as its descriptors show them."""
    found = set()
    with contextlib.suppress(OSError):
        for fd in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if str(fd.readlink()) == "/dev/efuse" and (number := connection_of(fd)):
                    found.add(number)
    return found


def has_open(process: Path, device: str) -> bool:
    """Tell whether a process has a device open; False also if this process may not see it.

    :param process: its directory in /proc.
    :param device: ``/dev/fuse`` or ``/dev/efuse``.
    """
    with contextlib.suppress(OSError):
        for fd in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if str(fd.readlink()) == device:
                    return True
    return False


def command_of(mount: Mount, *, proc: Path = _PROC) -> list[str] | None:
    """Return the program and arguments of the daemon of a mount.

    Any user may open /dev/fuse, and name the mount point. So only processes of the user of the
    mount are looked at, and those of root.

    :returns: None if it is not visible here, or if it is not clear which process it is.
    """
    device = "/dev/efuse" if mount.is_efuse else "/dev/fuse"
    told = re.search(r"(?:^|,)user_id=([0-9]+)", mount.options)
    users = {0, int(told[1])} if told else set()
    commands = [
        _command(process)
        for process in serving(mount.connection, device, proc=proc)
        if not users or _user_of(process) in users
    ]
    named = [words for words, paths in commands if mount.mountpoint in paths]
    return named[0] if len(named) == 1 else None


def _serves(fd: Path, connection: int, device: str) -> bool:
    return str(fd.readlink()) == device and connection_of(fd) in (None, connection)


def connection_of(fd: Path) -> int | None:
    """Return the connection that a descriptor serves; None if the kernel does not show it.

    :param fd: path of the descriptor in /proc.
    :raises OSError: it was closed meanwhile.
    """
    info = (fd.parent.parent / "fdinfo" / fd.name).read_text()
    told = re.search(r"^fuse_connection:\s*([0-9]+)$", info, re.MULTILINE)
    return int(told[1]) if told else None


def _user_of(process: Path) -> int:
    try:
        return process.stat().st_uid
    except OSError:  # it has ended
        return -1


def _command(process: Path) -> tuple[list[str], set[str]]:
    """Return the words of a command, and the paths that they may name."""
    try:
        words = os.fsdecode((process / "cmdline").read_bytes()).split("\0")[:-1]
        directory = (process / "cwd").readlink()
    except OSError:
        return [], set()
    return words, {os.path.normpath(directory / word) for word in words if word}
