# SPDX-License-Identifier: LGPL-2.1-or-later
"""Start a mount, and upgrade it.

The lock of the mount is held while something is changed, but not while a daemon starts: that may
take any time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from efuse.conditions import comes_true
from efuse.control import Connection, all_mounts
from efuse.control.mounts import numbers, place_of
from efuse.errors import MountError, reason
from efuse.fs.mountpoint import detach
from efuse.service.awaiting import await_service
from efuse.service.commands import mounting, taking_over
from efuse.service.description import Description
from efuse.service.processes import Process, spawn
from efuse.service.records import Record, Records
from efuse.service.seeing import Seen, State, see, settled
from efuse.supervisor.replacing import without_daemon

__all__ = ["begin", "obstacle", "start", "upgrade"]

# How long a daemon may take to end, in seconds.
_END_S = 30.0


def obstacle(given: Description, record: Record | None, seen: Seen) -> str:
    """Return why a mount cannot be started although it has no daemon; empty if it can."""
    if seen.state is State.FOREIGN:
        return f"another file system is mounted on {given.mountpoint} (EBUSY)"
    if seen.state is State.WAITING and record is not None and not _is_of(record, given):
        return "the mount that waits for a daemon has another mountpoint, type, source or options"
    return ""


def begin(given: Description, records: Records, record: Record | None, seen: Seen) -> Process:
    """Start the process that mounts, or that gives a mount that waits its next daemon.

    The caller has the lock of the mount. This does not wait for the process.

    :param record: what is remembered of the mount.
    :param seen: what was just seen of it.
    :raises MountError: it cannot be started.
    """
    if seen.state is State.ABORTED and record is not None:
        _detach(record, seen)
        seen = see(record, given.mountpoint, all_mounts())
    why = obstacle(given, record, seen)
    if why:
        is_foreign = seen.state is State.FOREIGN
        raise MountError(
            f"{given.name} cannot be started: {why}",
            hint=f"umount {given.mountpoint}" if is_foreign else f"efuse service stop {given.name}",
        )
    new = dataclasses.replace(Record.of(given), number=seen.number, above=max(numbers(), default=0))

    def note(process: Process) -> None:
        records.note_start(dataclasses.replace(new, process=process))

    return _spawned(given, records, _command(given, seen), note)


def start(given: Description, records: Records, *, most_s: float) -> bool:
    """Start a mount, and wait until it is served. Return False if it is already.

    :param most_s: how long to wait, in seconds.
    :raises MountError: it is not served, or something else is mounted there.
    """
    with records.locked(given.name):
        record = records.load(given.name)
        if record is not None and record.rest:
            record = dataclasses.replace(record, rest="")
            records.save(record)
        seen = see(record, given.mountpoint, all_mounts())
        if seen.state is State.ENDING:
            seen = _await_end(given, record, seen)
        if record is not None and record != (after := settled(record, seen)):
            record = after
            records.save(record)
        if seen.state in (State.SERVING, State.PLAIN):
            return False
        if seen.attendant and record is not None and not obstacle(given, record, seen):
            process = record.started[0]  # it is about to serve
        else:
            process = begin(given, records, record, seen)
    await_service(given, records, process, most_s=most_s)
    return True


def upgrade(given: Description, records: Records, *, force: bool, most_s: float) -> None:
    """Give a mount a daemon that is started from its present description.

    :param force: see `taking_over`.
    :param most_s: how long to wait until it serves, in seconds.
    :raises MountError: it has none, for the reason that follows. If its last daemon has ended, it
        waits for a successor.
    """
    with records.locked(given.name):
        record = records.load(given.name)
        seen = see(record, given.mountpoint, all_mounts())
        if record is None or seen.state not in (State.SERVING, State.WAITING):
            raise MountError(
                f"{given.name} cannot be upgraded: it is {seen.state} (ENOTCONN)",
                hint=f"efuse service start {given.name}",
            )
        if not _is_of(record, given):
            raise MountError(
                f"{given.name} cannot be upgraded: its mountpoint, type, source or options have"
                " changed (EINVAL)",
                hint=f"efuse service stop {given.name}, and start it again",
            )
        record = settled(record, seen)
        if record.successor.pid:
            raise MountError(
                f"{given.name} cannot be upgraded: process {record.successor.pid} still upgrades it"
                " (EBUSY)",
                hint=f"kill {record.successor.pid}",
            )
        process = _replace(given, records, record, seen, force=force)
    await_service(given, records, process, most_s=most_s, replaces=True)


def _replace(
    given: Description, records: Records, record: Record, seen: Seen, *, force: bool
) -> Process:
    """Start the process that replaces a daemon, and return it."""

    def note(process: Process) -> None:
        records.save(dataclasses.replace(record, successor=process, successor_digest=given.digest))

    command = _command(given, seen, force=force)
    if given.command:  # it ends the daemon
        return _spawned(given, records, command, note)
    with without_daemon(
        Connection(seen.connection),
        given.mountpoint,
        within_s=given.recovery,
        force=True,
        number=seen.number,
    ):
        return _spawned(given, records, command, note)


def _is_of(record: Record, given: Description) -> bool:
    """Tell whether a daemon that is started from a description can serve the mount of a record."""
    return (record.has_command, record.identity) == (bool(given.command), given.identity)


def _command(given: Description, seen: Seen, *, force: bool = False) -> list[str]:
    if not seen.is_mounted:
        return mounting(given, succeeds=False)
    if given.command:
        return taking_over(given, seen.connection, seen.number, force=force)
    return mounting(given, succeeds=True)


def _spawned(
    given: Description, records: Records, command: list[str], note: Callable[[Process], None]
) -> Process:
    try:
        return spawn(command, records.log(given.name), note)
    except OSError as error:
        raise MountError(
            f"{given.name} cannot be started: {reason(error)}", hint="ulimit -u"
        ) from error


def _await_end(given: Description, record: Record | None, seen: Seen) -> Seen:
    """Wait until the processes have ended that serve what was unmounted."""

    def look() -> Seen:
        return see(record, given.mountpoint, all_mounts())

    if not comes_true(lambda: look().state is not State.ENDING, _END_S):
        raise MountError(
            f"{given.name} cannot be started: process {seen.attendant} still serves what was"
            " unmounted (EBUSY)",
            hint="end the programs that use it",
        )
    return look()


def _detach(record: Record, seen: Seen) -> None:
    """Unmount a mount that has no daemon.

    :raises MountError: it cannot be unmounted.
    """
    why = "another mount covers it (EBUSY)"
    try:
        detach(place_of(seen.number) or record.mountpoint, seen.number)
    except OSError as error:
        why = reason(error)
    if see(record, record.mountpoint, all_mounts()).is_mounted:
        raise MountError(
            f"{record.mountpoint} has no daemon, and cannot be unmounted: {why}",
            hint=f"umount --lazy {record.mountpoint}",
        )
