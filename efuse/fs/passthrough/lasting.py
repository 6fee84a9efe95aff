# SPDX-License-Identifier: LGPL-2.1-or-later
"""Log a failure that lasts once, and not at each attempt."""

from __future__ import annotations

__all__ = ["Lasting"]


class Lasting:
    """A failure that may last. It is logged when it begins, changes its reason, and ends.

    :ivar reason: why the last attempt failed; None if it succeeded.
    """

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: str | None = None

    def begins(self, reason: str) -> bool:
        """Record that an attempt failed, and return whether that has to be logged."""
        is_new = reason != self.reason
        self.reason = reason
        return is_new

    def ends(self) -> bool:
        """Record that an attempt succeeded, and return whether that has to be logged."""
        has_lasted = self.reason is not None
        self.reason = None
        return has_lasted
