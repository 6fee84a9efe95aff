# SPDX-License-Identifier: LGPL-2.1-or-later
"""Wait until a mount is served by what was started for it."""

from __future__ import annotations

import signal
import time

from efuse.control import Connection, all_mounts
from efuse.errors import MountError
from efuse.service.description import Description
from efuse.service.processes import Process
from efuse.service.provenance import serves
from efuse.service.records import Records
from efuse.service.seeing import Seen, State, see, settled

__all__ = ["await_service"]

_LOOK_S = 0.05


def await_service(
    given: Description, records: Records, process: Process, *, most_s: float, replaces: bool = False
) -> None:
    """Wait until a mount is served by what was started for it, and record that.

    Another process may stop the mount meanwhile: this one does not have its lock.

    :param process: the process that was started first.
    :param most_s: how long to wait, in seconds. The process goes on after that.
    :param replaces: whether it replaces a daemon.
    :raises MountError: the mount is not served.
    """
    until = time.monotonic() + most_s
    while True:
        has_ended = not process.is_alive  # before the look: a daemon in the background goes on
        record = records.load(given.name)
        seen = see(record, given.mountpoint, all_mounts())
        is_served = _is_served(process, seen)
        if is_served or has_ended:
            _settle(given, records)
        if is_served:
            return
        if seen.state is State.ENDING:
            process.send(signal.SIGTERM)
            raise MountError(
                f"{given.name} is not served: its mount was unmounted meanwhile (ENOTCONN)",
                hint=f"efuse service start {given.name}",
            )
        is_attended = seen.attendant and not replaces
        if has_ended and not is_attended and seen.state is not State.STARTING:
            why = records.last_error(given.name) or "its process has ended"
            raise MountError(
                f"{given.name} is not served: {why}", hint=f"see {records.log(given.name)}"
            )
        if time.monotonic() >= until:
            raise MountError(
                f"{given.name} is not served yet: process {process.pid} goes on (ETIMEDOUT)",
                hint=f"efuse service stop {given.name} ends it",
            )
        time.sleep(_LOOK_S)


def _is_served(process: Process, seen: Seen) -> bool:
    if seen.state is State.PLAIN:
        return True
    return seen.state is State.SERVING and serves(process, Connection(seen.connection))


def _settle(given: Description, records: Records) -> None:
    with records.locked(given.name):
        record = records.load(given.name)
        if record is not None:
            after = settled(record, see(record, given.mountpoint, all_mounts()))
            if after != record:
                records.save(after)
