# SPDX-License-Identifier: LGPL-2.1-or-later
"""Twins of functions in Python that do not need the whole file in memory.

A call has either ``twin()`` or ``walk()`` besides its ``reference()``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

__all__ = ["InPieces", "Twin", "Walking", "whole"]


class Twin(Protocol):
    """A twin in the course of a file."""

    def step(self, data: bytes) -> bytes:
        """Look at the next data of the file, and return what is emitted.

        :param data: whole blocks; only the last call may end within one.
        """

    def finish(self) -> bytes:
        """Return what is emitted at the end of the file."""


@runtime_checkable
class InPieces(Protocol):
    """A call whose twin takes the file piece by piece."""

    def twin(self) -> Twin:
        """Return a new twin, at the beginning of a file."""


@runtime_checkable
class Walking(Protocol):
    """A call whose twin goes from block to block, by number."""

    def walk(self, read: Callable[[int], bytes]) -> bytes:
        """Return the output over the blocks that *read* returns, by number, as they are needed."""


def whole(twin: Twin, data: bytes) -> bytes:
    """Return the whole output of a twin over *data*."""
    return twin.step(data) + twin.finish()
