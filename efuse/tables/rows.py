# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows of tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from efuse.stats.model import MountRates

__all__ = ["Row", "mount_name"]

What = TypeVar("What")


@dataclass(frozen=True, slots=True)
class Row(Generic[What]):
    """One row of a table.

    :ivar what: the rates that the row shows.
    :ivar history: earlier rates.
    :ivar mount: name of the mount.
    :ivar connection: number of the mount's connection.
    :ivar is_plain: whether it is a plain FUSE mount.
    """

    what: What
    history: tuple[float, ...] = ()
    mount: str = ""
    connection: int | None = None
    is_plain: bool = False


def mount_name(m: MountRates) -> str:
    """Return the mount point, or the number of the connection if it is not mounted here."""
    return m.after.mountpoint or f"#{m.after.connection}"
