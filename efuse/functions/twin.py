# SPDX-License-Identifier: LGPL-2.1-or-later
"""Functions' twins in Python, which need not have all of a file at once.

A call has one of the two beside its ``reference()``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

__all__ = ["InPieces", "Twin", "Walking", "whole"]


class Twin(Protocol):
    """A twin on its way through a file."""

    def step(self, data: bytes) -> bytes:
        """Look at what follows in the file, and return what is emitted.

        :param data: whole blocks; the last ones may be less.
        """

    def finish(self) -> bytes:
        """Return what is emitted at the end."""


@runtime_checkable
class InPieces(Protocol):
    """A call whose twin needs not have all of the file at once."""

    def twin(self) -> Twin:
        """Return a twin at the beginning of a file."""


@runtime_checkable
class Walking(Protocol):
    """A call whose twin goes from block to block."""

    def walk(self, read: Callable[[int], bytes]) -> bytes:
        """Return what is emitted over blocks that are read, by their number, as they are needed."""


def whole(twin: Twin, data: bytes) -> bytes:
    """Return what a twin emits over *data*."""
    return twin.step(data) + twin.finish()
