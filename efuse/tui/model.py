# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``efuse top`` knows, and the rows that its tables are made of. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from efuse.stats.history import History
from efuse.stats.model import MountRates
from efuse.stats.snapshot import Change, Snapshot, change

__all__ = ["Key", "Model", "Row", "mount_name"]

What = TypeVar("What")

Key = tuple[int | None, str]
"""What names a row: the connection that it is of, if it is of one, and which of its things."""


@dataclass(frozen=True, slots=True)
class Model:
    """What happened last, and before.

    :ivar last: the latest sample; None: there is none yet.
    """

    last: Snapshot | None = None
    change: Change = field(default_factory=Change)
    history: History = field(default_factory=History)

    def after(self, sample: Snapshot) -> Model:
        """Return what is known once *sample* was taken."""
        if self.last is None:
            return Model(sample)
        found = change(self.last, sample)
        return Model(sample, found, self.history.after(found))

    def mounts(self, connection: int | None) -> tuple[MountRates, ...]:
        """Return one mount, or all if that is None or has gone."""
        chosen = tuple(m for m in self.change.mounts if m.after.connection == connection)
        return chosen or self.change.mounts


@dataclass(frozen=True, slots=True)
class Row(Generic[What]):
    """One row of a table.

    :ivar what: what happened.
    :ivar history: its rates until now.
    :ivar mount: the name of the mount that it is of.
    :ivar connection: the number of that one.
    :ivar is_plain: whether that is a plain FUSE mount.
    """

    what: What
    history: tuple[float, ...] = ()
    mount: str = ""
    connection: int | None = None
    is_plain: bool = False


def mount_name(m: MountRates) -> str:
    """Return where it is mounted, or its number."""
    return m.after.mountpoint or f"#{m.after.connection}"
