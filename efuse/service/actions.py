# SPDX-License-Identifier: LGPL-2.1-or-later
"""Start, upgrade and stop a mount. The caller has the lock of the mount, see `Records.locked`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterator

from efuse.conditions import comes_true
from efuse.control import Connection
from efuse.control.daemon_locks import DaemonLock, locked
from efuse.control.daemons import holders
from efuse.control.mounts import place_of
from efuse.errors import MountError, reason
from efuse.fs.mountpoint import detach
from efuse.fs.own_mount import OwnMount
from efuse.service.commands import mounting, taking_over
from efuse.service.description import Description
from efuse.service.processes import Process, spawn
from efuse.service.records import Record, Records
from efuse.service.seeing import Seen, State, see

__all__ = ["begin", "remember", "start", "stop", "upgrade"]

_LOOK_S = 0.05
# How long a daemon may take to end, in seconds.
_END_S = 30.0


def begin(
    given: Description, records: Records, seen: Seen, *, replaces: bool = False, force: bool = False
) -> Process:
    """Start the process that mounts, or that gives the mount a successor. Do not wait for it.

    :param seen: what was seen of the mount under its lock.
    :param replaces: whether the mount has a daemon.
    :param force: see `taking_over`.
    :raises MountError: what is mounted there cannot be unmounted, or no process can be made.
    """
    if seen.state is State.ABORTED:
        _detach(given.mountpoint, seen)
        seen = Seen(State.DOWN)
    if seen.connection and given.command:
        command = taking_over(given, seen.connection, force=force)
    else:
        command = mounting(given, succeeds=seen.connection != 0)
    before = records.load(given.name)
    # What serves now was not started from this description, unless it succeeds.
    digest = before.digest if before is not None and replaces else given.digest
    record = dataclasses.replace(Record.of(given), digest=digest, number=seen.number)

    def note(process: Process) -> None:
        records.save(dataclasses.replace(record, process=process))

    try:
        return spawn(command, records.log(given.name), note)
    except OSError as error:
        raise MountError(
            f"{given.name} cannot be started: {reason(error)}", hint="ulimit -u"
        ) from error


def remember(records: Records, record: Record, seen: Seen) -> None:
    """Record which mount it is, once it is there."""
    if seen.is_mounted and seen.number != record.number:
        records.save(dataclasses.replace(record, number=seen.number))


def start(given: Description, records: Records) -> bool:
    """Start a mount, and wait until it is served. Return False if it is already.

    :raises MountError: it is not served, or something else is mounted there.
    """
    record = records.load(given.name)
    seen = see(record, given.mountpoint)
    if seen.state is State.FOREIGN:
        raise MountError(
            f"{given.name} cannot be started: another file system is mounted on"
            f" {given.mountpoint} (EBUSY)",
            hint=f"umount {given.mountpoint}",
        )
    if seen.state is State.ENDING:
        assert record is not None
        if not comes_true(lambda: not record.process.is_alive, _END_S):
            raise MountError(
                f"{given.name} cannot be started: process {record.process.pid} still serves what"
                " was unmounted (EBUSY)",
                hint="end the programs that use it",
            )
        seen = see(record, given.mountpoint)
    if seen.state in (State.SERVING, State.PLAIN):
        return False
    if seen.supervisor and record is not None:  # it is about to serve
        process = record.process
    else:
        process = begin(given, records, seen)
    _await_service(given, records, process, seen.incarnation - 1)
    return True


def upgrade(given: Description, records: Records, *, force: bool) -> None:
    """Give a mount a daemon that is started from its present description.

    :param force: see `taking_over`.
    :raises MountError: it has none, for the reason that follows. If its last daemon has ended, it
        waits for a successor.
    """
    record = records.load(given.name)
    seen = see(record, given.mountpoint)
    if record is None or seen.state not in (State.SERVING, State.WAITING):
        raise MountError(
            f"{given.name} cannot be upgraded: it is {seen.state} (ENOTCONN)",
            hint=f"efuse service start {given.name}",
        )
    if (record.has_command, record.identity) != (bool(given.command), given.identity):
        raise MountError(
            f"{given.name} cannot be upgraded: its mountpoint, type, source or options have changed"
            " (EINVAL)",
            hint=f"efuse service stop {given.name}, and start it again",
        )
    if given.command:
        process = begin(given, records, seen, replaces=True, force=force)
    else:
        with _without_daemon(given, seen):
            process = begin(given, records, seen, replaces=True)
    _await_service(given, records, process, seen.incarnation)
    after = records.load(given.name)
    assert after is not None
    records.save(dataclasses.replace(after, digest=given.digest))


def stop(record: Record, records: Records, *, lazy: bool, rest: str) -> bool:
    """Unmount a mount, and wait for the process that was started for it.

    :param lazy: whether to unmount it although it is used.
    :param rest: why the service is not to start it again, see `Record`; empty if it is.
    :returns: whether it was running.
    :raises MountError: it cannot be unmounted; it goes on then.
    """
    seen = see(record, record.mountpoint)
    # First, so that the service does not start it again, even if this process is killed.
    records.save(dataclasses.replace(record, rest=rest))
    if seen.is_mounted:
        try:
            _unmount(record, seen, lazy=lazy)
        except OSError as error:
            records.save(record)
            raise MountError(
                f"{record.name} cannot be stopped: {record.mountpoint} cannot be unmounted:"
                f" {reason(error)}",
                hint="end the programs that use it, or use --lazy",
            ) from error
    elif seen.supervisor:
        record.process.send(signal.SIGTERM)
    if not comes_true(lambda: not record.process.is_alive, _END_S):
        raise MountError(
            f"{record.name} was unmounted, but process {record.process.pid} does not end (EBUSY)",
            hint=f"kill {record.process.pid}",
        )
    return seen.is_mounted or bool(seen.supervisor)


def _unmount(record: Record, seen: Seen, *, lazy: bool) -> None:
    own = OwnMount(record.mountpoint, seen.connection, seen.number or None)
    if lazy:
        own.detach(-1)
    else:
        own.unmount(-1)


def _detach(mountpoint: str, seen: Seen) -> None:
    try:
        detach(place_of(seen.number) or mountpoint, seen.number)
    except OSError as error:
        raise MountError(
            f"{mountpoint} has no daemon, and cannot be unmounted: {reason(error)}",
            hint=f"umount --lazy {mountpoint}",
        ) from error


@contextlib.contextmanager
def _without_daemon(given: Description, seen: Seen) -> Iterator[None]:
    """End the daemon of a file system of the package, so that its mount waits for the next one.

    It would unmount after SIGTERM, so it is killed. Requests that it had not answered go to its
    successor.
    """
    connection = Connection(seen.connection)
    lock = locked(connection, DaemonLock.REPLACING)
    try:
        connection.recovery = given.recovery
        for pid in holders(connection.id):
            process = Process.of(pid)
            # An id may have been used again meanwhile.
            if process is not None and pid in holders(connection.id):
                process.send(signal.SIGKILL)
        if not comes_true(lambda: connection.daemon != "serving", _END_S):
            raise MountError(
                f"{given.name} cannot be upgraded: its daemon does not end (EBUSY)",
                hint="efuse stat shows the processes that serve it",
            )
        yield
    finally:
        os.close(lock)


def _await_service(
    given: Description, records: Records, process: Process, incarnation: int
) -> None:
    """Wait until a mount is served by another daemon than before.

    :param process: the process that was started for it.
    :param incarnation: the successors that the mount had before.
    :raises MountError: the process has ended, and the mount is not served.
    """

    while True:
        has_ended = not process.is_alive  # before the look: a daemon in the background goes on
        record = records.load(given.name)
        assert record is not None
        seen = see(record, given.mountpoint)
        if seen.state is State.PLAIN or (
            seen.state is State.SERVING and seen.incarnation > incarnation
        ):
            remember(records, record, seen)
            return
        if seen.state in (State.ENDING, State.FOREIGN):
            process.send(signal.SIGTERM)
            raise MountError(
                f"{given.name} is not served: its mount was unmounted meanwhile (ENOTCONN)",
                hint=f"efuse service start {given.name}",
            )
        if has_ended and seen.state is not State.STARTING:
            why = records.last_error(given.name) or "its process has ended"
            raise MountError(
                f"{given.name} is not served: {why}", hint=f"see {records.log(given.name)}"
            )
        time.sleep(_LOOK_S)
