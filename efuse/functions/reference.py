# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reference implementations of functions, in Python, that do not need the whole file in memory.

A call has either ``stream()`` or ``walk()`` besides its ``reference()``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

__all__ = ["RandomAccess", "ReferenceImplementation", "Streaming", "whole"]


class ReferenceImplementation(Protocol):
    """A reference implementation in the course of a file."""

    def step(self, data: bytes) -> bytes:
        """Look at the next data of the file, and return what is emitted.

        :param data: whole blocks; only the last call may end within one.
        """

    def finish(self) -> bytes:
        """Return what is emitted at the end of the file."""


@runtime_checkable
class Streaming(Protocol):
    """A call whose reference implementation takes the file piece by piece, in order."""

    def stream(self) -> ReferenceImplementation:
        """Return a new reference implementation, at the beginning of a file."""


@runtime_checkable
class RandomAccess(Protocol):
    """A call whose reference implementation goes from block to block, by number."""

    def walk(self, read: Callable[[int], bytes]) -> bytes:
        """Return the output over the blocks that *read* returns, by number, as they are needed."""


def whole(reference: ReferenceImplementation, data: bytes) -> bytes:
    """Return the whole output of a reference implementation over *data*."""
    return reference.step(data) + reference.finish()
