# SPDX-License-Identifier: LGPL-2.1-or-later
"""See how a mount is doing: from the kernel's table of mounts, sysfs, and its record.

Nothing here asks a daemon, and nothing changes.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass

from efuse.control import Connection, Mount
from efuse.control.daemon_locks import DaemonLock, holder_of
from efuse.control.mounts import number_of, numbered, resolve
from efuse.errors import ControlError
from efuse.service.provenance import has_made, left_of, serves
from efuse.service.records import Record

__all__ = ["Seen", "State", "see", "settled"]


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
    """A FUSE file system is mounted at its mount point that was not started for it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen of a mount.

    :ivar state: its state.
    :ivar connection: number of its connection; 0 if it is not mounted.
    :ivar number: unique number of the mount, see `efuse.control.mounts.number_at`; 0 without one.
    :ivar incarnation: how many successors its first daemon has had.
    :ivar waiting: requests in flight, of callers that wait for the daemon.
    :ivar attendant: id of a process that attends to the mount: it starts the daemon again, or was
        started for the mount and has not ended; 0 if there is none.
    """

    state: State
    connection: int = 0
    number: int = 0
    incarnation: int = 0
    waiting: int = 0
    attendant: int = 0

    @property
    def is_mounted(self) -> bool:
        """Whether the described mount is there."""
        return self.connection != 0 and self.state is not State.FOREIGN


def see(record: Record | None, mountpoint: str, table: Sequence[Mount]) -> Seen:
    """Return what is seen of a mount.

    :param record: what is remembered of it; None: it was never started.
    :param mountpoint: where its description has it.
    :param table: all mounts.
    :raises ControlError: the mount point leads through too many links.
    """
    if record is not None:
        found = _own(record, table)
        seen = None if found is None else _mounted(record, *found)
        if seen is not None:
            return seen
    seen = _unmounted(record)
    if seen.attendant:
        return seen
    where = resolve(mountpoint, table)
    # The last one at a mount point covers the others.
    top = next((m for m in reversed(table) if m.mountpoint == where), None)
    if top is not None and (top.is_efuse or top.is_fuse):
        return Seen(State.FOREIGN, top.connection)
    return seen


def settled(record: Record, seen: Seen) -> Record:
    """Return a record with what was seen since it was written.

    A successor has taken the place of the process that was started before when it serves. Then, the
    mount is as its description was at that time.
    """
    after = record
    if seen.is_mounted and seen.number != record.number:
        after = dataclasses.replace(after, number=seen.number)
    if record.successor.pid:
        has_ended = not record.successor.is_alive  # before the look: it may go to the background
        if seen.is_mounted and serves(record.successor, Connection(seen.connection)):
            after = dataclasses.replace(
                after, process=record.successor, digest=record.successor_digest
            ).without_successor()
        elif has_ended and seen.state is not State.STARTING:
            after = after.without_successor()
    return after


def _own(record: Record, table: Sequence[Mount]) -> tuple[int, int, str] | None:
    """Return the connection, the unique number and the type of the mount of a record."""
    if record.number:
        found = numbered(record.number)
        if found is None or not found.is_of_fuse:
            return None
        return found.connection, found.number, found.fstype
    if not record.process.pid:
        return None
    where = resolve(record.mountpoint, table)
    for mount in table:
        if mount.mountpoint == where and (mount.is_efuse or mount.is_fuse):
            number = number_of(mount.connection)
            is_later = number > record.above or not (number or record.above)
            if is_later and any(has_made(each, mount) for each in record.started):
                return mount.connection, number, mount.fstype
    return None


def _mounted(record: Record, connection: int, number: int, fstype: str) -> Seen | None:
    if not fstype.startswith("efuse"):
        return Seen(State.PLAIN, connection, number, attendant=_attendant(record))
    try:
        return _served(record, Connection(connection), number)
    except ControlError:  # it has just ended
        return None


def _unmounted(record: Record | None) -> Seen:
    if record is None:
        return Seen(State.DOWN)
    attendant = _attendant(record)
    if not attendant and record.process.pid and not record.rest:
        attendant = left_of(record.process)
    if attendant:
        state = State.ENDING if record.number else State.STARTING
        return Seen(state, attendant=attendant)
    return Seen(State(record.rest or State.DOWN))


def _attendant(record: Record) -> int:
    return next((each.pid for each in record.started if each.is_alive), 0)


def _served(record: Record, connection: Connection, number: int) -> Seen:
    states = {"serving": State.SERVING, "starting": State.STARTING, "dead": State.WAITING}
    supervisor = holder_of(connection, DaemonLock.RESTARTING) if record.has_command else 0
    return Seen(
        states.get(connection.daemon, State.ABORTED),
        connection.id,
        number,
        connection.incarnation,
        connection.waiting,
        supervisor or _attendant(record),
    )
