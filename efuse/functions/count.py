# SPDX-License-Identifier: LGPL-2.1-or-later
"""``count``: count lines and the occurrences of a pattern."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from efuse.functions.patterns import check_pattern, encode_pattern
from efuse.functions.reference import ReferenceImplementation, whole

__all__ = ["Count", "Counted"]

_RESULT = struct.Struct("<QQQ")


@dataclass(frozen=True)
class Counted:
    """The result of `Count`.

    :ivar lines: number of newlines.
    :ivar matches: number of occurrences of the pattern, which may overlap.
    :ivar size: number of bytes looked at.
    """

    lines: int
    matches: int
    size: int


@dataclass(frozen=True)
class Count:
    """Count lines and the occurrences of a pattern.

    :param pattern: bytes to look for, at most 64; empty: count lines and bytes only.
    :raises UsageError: the pattern is longer.
    """

    name: ClassVar[str] = "count"

    pattern: bytes = b""

    def __post_init__(self) -> None:
        check_pattern(self.pattern)

    def encode(self) -> bytes:
        """Return the arguments as the function takes them (``struct pattern_args``)."""
        return encode_pattern(self.pattern)

    def reference(self, data: bytes) -> bytes:
        """Return the function's output over *data*, the contents of the file."""
        return whole(self.stream(), data)

    def stream(self) -> ReferenceImplementation:
        """Return the function's reference implementation, at the beginning of a file."""
        return _CountReference(self.pattern)

    def decode(self, raw: bytes) -> Counted:
        """Return the result that the function emitted."""
        return Counted(*_RESULT.unpack(raw))


class _CountReference:
    def __init__(self, pattern: bytes) -> None:
        self._pattern = pattern
        self._lines = 0
        self._matches = 0
        self._size = 0
        self._before = b""
        """The end of the data so far, in which a match may begin."""

    def step(self, data: bytes) -> bytes:
        self._lines += data.count(b"\n")
        self._size += len(data)
        if self._pattern:
            seen = self._before + data
            start = 0
            while start := seen.find(self._pattern, start) + 1:
                self._matches += 1
            self._before = seen[max(len(seen) - len(self._pattern) + 1, 0) :]
        return b""

    def finish(self) -> bytes:
        return _RESULT.pack(self._lines, self._matches, self._size)
