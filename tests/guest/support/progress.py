# SPDX-License-Identifier: LGPL-2.1-or-later
"""A writer's progress, in memory that processes share."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

ROUNDS = 120


class Progress:
    """How far a writer is, in memory that processes share."""

    def __init__(self) -> None:
        # One store each: struct.pack_into() would be seen half done.
        self._numbers = (ctypes.c_uint64 * 2).from_buffer(mmap.mmap(-1, 4096))

    @property
    def begun(self) -> int:
        """The last change that was begun."""
        return self._numbers[0]

    @begun.setter
    def begun(self, number: int) -> None:
        self._numbers[0] = number

    @property
    def done(self) -> int:
        """The last change that was done."""
        return self._numbers[1]

    @done.setter
    def done(self, number: int) -> None:
        self._numbers[1] = number

    def write(self, change: Callable[[int], object]) -> None:
        for number in range(1, ROUNDS + 1):
            self.begun = number
            change(number)
            self.done = number

    def read(self, ask: Callable[[], int]) -> int:
        """Ask until the writer is done; return how often."""
        asked = 0
        while (done := self.done) < ROUNDS:
            seen = ask()
            begun = self.begun
            assert done <= seen <= begun, f"saw {seen} when {done} was done and {begun} begun"
            asked += 1
        assert ask() == ROUNDS, "the last one is not seen"
        return asked
