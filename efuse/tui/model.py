# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``efuse top`` knows. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field

from efuse.stats.history import History
from efuse.stats.model import MountRates
from efuse.stats.snapshot import Change, Snapshot, change

__all__ = ["Key", "Model"]

Key = tuple[int | None, str]
"""Identity of a row: the connection, or None, and the name of a thing of it, or ""."""


@dataclass(frozen=True, slots=True)
class Model:
    """The latest samples and rates.

    :ivar last: the latest sample, or None.
    :ivar change: activity between the two latest samples.
    :ivar history: rates of the latest intervals.
    """

    last: Snapshot | None = None
    change: Change = field(default_factory=Change)
    history: History = field(default_factory=History)

    def after(self, sample: Snapshot) -> Model:
        """Return the model with one more sample."""
        if self.last is None:
            return Model(sample)
        found = change(self.last, sample)
        return Model(sample, found, self.history.after(found))

    def mounts(self, connection: int | None) -> tuple[MountRates, ...]:
        """Return the rates of one mount, or of all if *connection* is None or gone."""
        chosen = tuple(m for m in self.change.mounts if m.after.connection == connection)
        return chosen or self.change.mounts
