# SPDX-License-Identifier: LGPL-2.1-or-later
"""End the daemon of a mount so that another one can take the mount over.

Daemons with libfuse unmount when they get SIGTERM. A daemon of `efuse run --restart` cannot do
so meanwhile: its supervisor ignores the call. Any other daemon that handles SIGTERM can only be
killed. A daemon that does not handle it ends by it, and leaves its mount.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from efuse.conditions import comes_true
from efuse.control import Connection
from efuse.control.daemon_locks import DaemonLock, is_locked, locked
from efuse.control.daemons import holders
from efuse.control.mounts import is_mounted
from efuse.control.takeover import why_it_ends
from efuse.errors import ControlError, MountError

__all__ = ["without_daemon"]

# How long a daemon may take to end, in seconds, and its supervisor to leave its mount.
_END_S, _LEAVE_S = 10.0, 5.0
_FORCE = "--force kills the daemon; what it has not written yet is lost"
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)


@contextlib.contextmanager
def without_daemon(
    connection: Connection, mountpoint: str, *, within_s: int, force: bool, number: int = 0
) -> Iterator[None]:
    """End the daemon of a mount. Within the block, no other process starts one.

    :param connection: its connection. After the mount has ended, another one may have its number.
    :param mountpoint: the mount point, for messages.
    :param number: unique number of the mount, see `efuse.control.mounts.number_at`; 0 if it is not
        known.
    :param within_s: how long the mount waits for a successor, in seconds.
    :param force: whether the daemon may be killed.
    :raises MountError: the daemon cannot be ended, or the mount ends with it.
    :raises ControlError: this process is not root, or another one replaces the daemon.
    """
    connection.pin()
    lock = locked(connection, DaemonLock.REPLACING)
    try:
        # The mount that has the connection now had it when it was pinned.
        if number and is_mounted(number) != connection.id:
            raise MountError(
                f"{mountpoint} cannot be taken over: it was unmounted meanwhile (ENOTCONN)",
                hint="efuse stat shows what is mounted",
            )
        why = why_it_ends(connection)
        if why:
            raise MountError(f"{mountpoint} cannot be taken over: {why}")
        before, connection.recovery = connection.recovery, within_s
        try:
            _hand_over(connection, mountpoint, force=force)
        except MountError:
            with contextlib.suppress(ControlError):  # the connection has ended
                connection.recovery = before
            raise
        yield
    finally:
        os.close(lock)


def _hand_over(connection: Connection, mountpoint: str, *, force: bool) -> None:
    """Let the daemon leave the mount. The module has no request that asks a daemon to do so."""
    state = connection.daemon
    if state == "starting":
        raise MountError(
            f"{mountpoint} cannot be taken over: another daemon is starting to serve it (EBUSY)",
            hint="wait until `efuse stat` shows that it serves",
        )
    if state == "serving":
        _end(connection, mountpoint, force=force)
    if connection.daemon == "none":
        raise MountError(
            f"{mountpoint} cannot be taken over: its connection has ended (ENOTCONN)",
            hint=f"umount {mountpoint}, and mount it again",
        )
    # The handlers of the last daemon belong to its supervisor.
    comes_true(lambda: _is_left(connection), _LEAVE_S)


def _is_left(connection: Connection) -> bool:
    """Tell whether the supervisor of the last daemon has left the mount."""
    return not is_locked(connection, DaemonLock.RESTARTING) and connection.state == "plain"


def _end(connection: Connection, mountpoint: str, *, force: bool) -> None:
    """End the processes that serve a connection."""
    found = holders(connection.id)
    if not found:
        raise MountError(
            f"{mountpoint} cannot be taken over: its daemon is not visible here (ESRCH)",
            hint="run this where the daemon runs, and not in a container",
        )
    outlives_daemon = is_locked(connection, DaemonLock.RESTARTING)
    unmounts = not outlives_daemon and any(map(_handles_sigterm, found))
    if unmounts and not force:
        raise MountError(
            f"{mountpoint} cannot be taken over: its daemon would unmount it when asked to end"
            " (EBUSY)",
            hint=_FORCE,
        )
    with contextlib.ExitStack() as stack:
        opened = {}
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                opened[process] = os.pidfd_open(process)
                stack.callback(os.close, opened[process])
        # An id may have been used again before its descriptor was opened.
        serving = [opened[process] for process in holders(connection.id) & opened.keys()]
        _ = connection.connected  # fails if the connection has ended: these serve a later one
        numbers = [signal.SIGKILL] if unmounts else [signal.SIGTERM]
        numbers += [signal.SIGKILL] if force else []
        if not any(_has_ended_by(number, serving, connection) for number in numbers):
            raise MountError(
                f"{mountpoint} cannot be taken over: its daemon does not end (EBUSY)", hint=_FORCE
            )


def _has_ended_by(number: int, processes: list[int], connection: Connection) -> bool:
    """Send a signal to processes, and tell whether they have left the connection in time.

    :param processes: descriptors of the processes.
    """
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, number)
    return comes_true(lambda: connection.daemon != "serving", _END_S)


def _handles_sigterm(process: int) -> bool:
    """Tell whether a process has a handler for SIGTERM; True if it cannot be known."""
    with contextlib.suppress(OSError):
        told = _CAUGHT.search(Path(f"/proc/{process}/status").read_text(errors="replace"))
        return told is None or bool(int(told[1], 16) >> (signal.SIGTERM - 1) & 1)
    return True
