# SPDX-License-Identifier: LGPL-2.1-or-later
"""The status of each mount that is described, or that was started and goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from efuse.control import Mount, all_mounts
from efuse.control.daemons import holders
from efuse.service.parsing import Described
from efuse.service.records import Record, Records
from efuse.service.seeing import Seen, State, see, settled

__all__ = ["Status", "statuses"]


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a mount.

    :ivar name: its name.
    :ivar mountpoint: where it is, or is to be, mounted; empty if its description is invalid and it
        was never started.
    :ivar seen: what is seen of it.
    :ivar is_silent: whether its daemon has requests, and has answered none for a while.
    :ivar is_changed: whether it was started from another description than the present one.
    :ivar is_described: whether it has a valid description.
    :ivar problem: what is wrong with its description, or how its last start has failed; empty if
        nothing is wrong.
    """

    name: str
    mountpoint: str
    seen: Seen
    is_silent: bool
    is_changed: bool
    is_described: bool
    problem: str

    @property
    def is_right(self) -> bool:
        """Whether it is served, or was stopped on purpose, and its description is valid."""
        return (self.is_up or self.seen.state is State.STOPPED) and not self.problem

    @property
    def is_up(self) -> bool:
        """Whether it has a daemon, which answers."""
        return self.seen.state is State.SERVING and not self.is_silent

    @property
    def note(self) -> str:
        """What a person has to know besides the state; may be empty."""
        if self.problem:
            return self.problem
        if self.is_silent:
            return "does not answer"
        if not self.is_described:
            return "no description"
        return "changed: needs upgrade" if self.is_changed else ""

    @property
    def json(self) -> Mapping[str, Any]:
        """All of it, for programs."""
        daemons = sorted(holders(self.seen.connection)) if self.seen.connection else []
        # A file system of the package has none.
        supervisor = 0 if self.seen.attendant in daemons else self.seen.attendant
        return {
            "name": self.name,
            "mountpoint": self.mountpoint,
            "state": str(self.seen.state),
            "connection": self.seen.connection or None,
            "successors": self.seen.incarnation,
            "waiting": self.seen.waiting,
            "answers": self.is_up,
            "daemons": daemons,
            "supervisor": supervisor or None,
            "described": self.is_described,
            "changed": self.is_changed,
            "problem": self.problem,
        }


def statuses(records: Records, found: Described) -> list[Status]:
    """Return the status of each mount, by name.

    :param found: the descriptions.
    :raises EfuseError: another user can change the records, or mountinfo cannot be read.
    """
    names = {*found.mounts, *found.errors, *records.names()}
    is_attended, table = records.service() is not None, all_mounts()
    return [_status(name, records, found, table, is_attended=is_attended) for name in sorted(names)]


def _status(
    name: str, records: Records, found: Described, table: Sequence[Mount], *, is_attended: bool
) -> Status:
    given = found.mounts.get(name)
    record = records.load(name)
    place = given.mountpoint if given is not None else record.mountpoint if record else ""
    seen = see(record, place, table) if place else Seen(State.DOWN)
    if record is not None:
        record = settled(record, seen)
        if seen.is_mounted:
            place = record.mountpoint
    is_old = record is not None and given is not None and record.digest != given.digest
    problem = str(found.errors.get(name, "")) or _failure(records, record, seen)
    return Status(
        name,
        place,
        seen,
        # Without the service, nothing looks.
        is_attended and seen.state is State.SERVING and records.is_silent(name),
        is_old and seen.is_mounted,
        given is not None,
        problem,
    )


def _failure(records: Records, record: Record | None, seen: Seen) -> str:
    """Return how the last start has failed; empty if nothing tells of a failure."""
    if record is None or seen.state is not State.DOWN:
        return ""
    return records.last_error(record.name)
