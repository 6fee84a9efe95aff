# SPDX-License-Identifier: LGPL-2.1-or-later
"""See how a mount is doing: from the kernel's table of mounts, sysfs, and its record.

Nothing here asks a daemon, and nothing changes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from efuse.control import Connection, all_mounts
from efuse.control.daemon_locks import DaemonLock, holder_of
from efuse.control.mounts import number_of, numbered, resolve
from efuse.errors import ControlError
from efuse.service.records import Record

__all__ = ["Seen", "State", "see"]


class State(enum.StrEnum):
    """The state of a mount."""

    SERVING = "serving"
    """It is mounted, and has a daemon."""
    STARTING = "starting"
    """A process is about to mount it, or to serve it."""
    WAITING = "waiting"
    """Its daemon has died, and callers wait for the next one."""
    ABORTED = "aborted"
    """It is mounted without a daemon, and calls fail."""
    PLAIN = "plain"
    """It is mounted as plain FUSE."""
    ENDING = "ending"
    """It was unmounted, and the process that was started for it is about to end."""
    DOWN = "down"
    """It is not mounted."""
    STOPPED = "stopped"
    """It is not mounted, because `efuse service stop` has unmounted it."""
    ENDED = "ended"
    """It is not mounted, because it has ended and is not to be started again."""
    FOREIGN = "foreign"
    """Another FUSE file system is mounted at its mount point."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen of a mount.

    :ivar state: its state.
    :ivar connection: number of its connection; 0 if it is not mounted.
    :ivar number: unique number of the mount, see `efuse.control.mounts.number_at`; 0 without one.
    :ivar incarnation: how many successors its first daemon has had.
    :ivar waiting: requests in flight, of callers that wait for the daemon.
    :ivar supervisor: id of the process that starts its daemon again; 0 if there is none.
    """

    state: State
    connection: int = 0
    number: int = 0
    incarnation: int = 0
    waiting: int = 0
    supervisor: int = 0

    @property
    def is_mounted(self) -> bool:
        """Whether the described mount is there."""
        return self.connection != 0 and self.state is not State.FOREIGN


def see(record: Record | None, mountpoint: str) -> Seen:
    """Return what is seen of a mount.

    :param record: what is remembered of it; None: it was never started.
    :param mountpoint: where it is to be mounted, if it has no record.
    :raises ControlError: mountinfo cannot be read.
    """
    table = all_mounts()
    if record is not None and record.number and (found := numbered(record.number)) is not None:
        return _mounted(record, found.connection, found.number, found.fstype)
    where = resolve(record.mountpoint if record is not None else mountpoint, table)
    # The last one at a mount point covers the others.
    top = next((m for m in reversed(table) if m.mountpoint == where), None)
    if top is not None and (top.is_efuse or top.is_fuse):
        number = number_of(top.connection)
        # What appears after a start, where nothing was, is what was started.
        if record is None or record.number or not record.process.pid:
            return Seen(State.FOREIGN, top.connection, number)
        return _mounted(record, top.connection, number, top.fstype)
    return _unmounted(record)


def _mounted(record: Record, connection: int, number: int, fstype: str) -> Seen:
    if not fstype.startswith("efuse"):
        return Seen(State.PLAIN, connection, number)
    try:
        return _served(record, Connection(connection), number)
    except ControlError:  # it has just ended
        return _unmounted(record)


def _unmounted(record: Record | None) -> Seen:
    if record is None:
        return Seen(State.DOWN)
    if record.process.is_alive:
        state = State.ENDING if record.number else State.STARTING
        return Seen(state, supervisor=record.process.pid)
    return Seen(State(record.rest or State.DOWN))


def _served(record: Record, connection: Connection, number: int) -> Seen:
    states = {"serving": State.SERVING, "starting": State.STARTING, "dead": State.WAITING}
    supervisor = holder_of(connection, DaemonLock.RESTARTING) if record.has_command else 0
    if not supervisor and record.process.is_alive:
        supervisor = record.process.pid
    return Seen(
        states.get(connection.daemon, State.ABORTED),
        connection.id,
        number,
        connection.incarnation,
        connection.waiting,
        supervisor,
    )
