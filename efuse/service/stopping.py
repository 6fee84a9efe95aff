# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stop mounts."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
from collections.abc import Iterable

from efuse.conditions import comes_true
from efuse.control import all_mounts
from efuse.control.mounts import numbered, resolve
from efuse.errors import MountError, reason
from efuse.fs.own_mount import OwnMount
from efuse.service.records import Record, Records
from efuse.service.seeing import Seen, see

__all__ = ["deepest_first", "stop"]

# How long a process may take to end, in seconds.
_END_S = 30.0


def deepest_first(stopped: Iterable[Record]) -> list[Record]:
    """Return records in the order in which their mounts can be unmounted."""
    table = all_mounts()
    return sorted(stopped, key=lambda r: (resolve(r.mountpoint, table), r.number), reverse=True)


def stop(given: Record, records: Records, *, lazy: bool, rest: str, forgets: bool = False) -> bool:
    """Unmount a mount, and wait for the processes that were started for it.

    :param given: its record, or a new one if it has none.
    :param lazy: whether to unmount it although it is used. Then, the processes are not awaited.
    :param rest: why the service is not to start it again, see `Record`; empty if it is.
    :param forgets: whether it has no description any more, so that nothing has to be remembered.
    :returns: whether it was running.
    :raises MountError: it cannot be unmounted; it goes on then.
    """
    with records.locked(given.name):
        record = records.load(given.name) or given
        seen = see(record, record.mountpoint, all_mounts())
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
            ending = [record.successor]
        else:
            ending = record.started
        for process in ending:
            process.send(signal.SIGTERM)
        if not (lazy and seen.is_mounted):
            _await_end(record)
        if forgets and not any(each.is_alive for each in record.started):
            records.forget(record.name)
        return bool(seen.is_mounted or seen.attendant)


def _unmount(record: Record, seen: Seen, *, lazy: bool) -> None:
    own = OwnMount(record.mountpoint, seen.connection, seen.number or None)
    if not lazy:
        own.unmount(-1)
        return
    own.detach(-1)
    if seen.number and numbered(seen.number) is not None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), record.mountpoint)


def _await_end(record: Record) -> None:
    if not comes_true(lambda: not any(each.is_alive for each in record.started), _END_S):
        left = next((each.pid for each in record.started if each.is_alive), 0)
        raise MountError(
            f"{record.name} was unmounted, but process {left} does not end (EBUSY)",
            hint=f"kill {left}",
        )
