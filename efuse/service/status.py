# SPDX-License-Identifier: LGPL-2.1-or-later
"""The status of each mount that is described, or that was started and goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from efuse.control.daemons import holders
from efuse.service.description import Description
from efuse.service.parsing import Described
from efuse.service.records import Record, Records
from efuse.service.seeing import Seen, State, see

__all__ = ["Status", "statuses"]


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a mount.

    :ivar name: its name.
    :ivar mountpoint: where it is, or is to be, mounted; empty if its description is invalid and it
        was never started.
    :ivar seen: what is seen of it.
    :ivar is_changed: whether it was started from another description than the present one.
    :ivar is_described: whether it has a valid description.
    :ivar problem: what is wrong with its description, or how its last start has failed; empty if
        nothing is wrong.
    """

    name: str
    mountpoint: str
    seen: Seen
    is_changed: bool
    is_described: bool
    problem: str

    @property
    def is_right(self) -> bool:
        """Whether it is served, or was stopped on purpose, and its description is valid."""
        good = (State.SERVING, State.STOPPED)
        return self.seen.state in good and not self.problem

    @property
    def note(self) -> str:
        """What a person has to know besides the state; may be empty."""
        if self.problem:
            return self.problem
        if not self.is_described:
            return "no description"
        return "changed: needs upgrade" if self.is_changed else ""

    @property
    def json(self) -> Mapping[str, Any]:
        """All of it, for programs."""
        daemons = sorted(holders(self.seen.connection)) if self.seen.connection else []
        return {
            "name": self.name,
            "mountpoint": self.mountpoint,
            "state": str(self.seen.state),
            "connection": self.seen.connection or None,
            "successors": self.seen.incarnation,
            "waiting": self.seen.waiting,
            "daemons": daemons,
            "supervisor": self.seen.supervisor or None,
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
    return [
        _status(name, records, found.mounts.get(name), _text(found, name)) for name in sorted(names)
    ]


def _text(found: Described, name: str) -> str:
    return str(found.errors[name]) if name in found.errors else ""


def _status(name: str, records: Records, given: Description | None, error: str) -> Status:
    record = records.load(name)
    place = record.mountpoint if record is not None else given.mountpoint if given else ""
    seen = see(record, place) if place else Seen(State.DOWN)
    is_old = record is not None and given is not None and record.digest != given.digest
    problem = error or _failure(records, record, seen)
    return Status(name, place, seen, is_old and seen.is_mounted, given is not None, problem)


def _failure(records: Records, record: Record | None, seen: Seen) -> str:
    """Return how the last start has failed; empty if it has not, or nothing tells."""
    if record is None or seen.state is not State.DOWN:
        return ""
    return records.last_words(record.name)
