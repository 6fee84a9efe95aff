# SPDX-License-Identifier: LGPL-2.1-or-later
"""``count``: lines, and how often a pattern occurs."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from efuse.functions.patterns import check_pattern, encode_pattern

__all__ = ["Count", "Counted"]

_RESULT = struct.Struct("<QQQ")


@dataclass(frozen=True)
class Counted:
    """What `Count` found.

    :ivar lines: ends of lines.
    :ivar matches: where the pattern occurs; occurrences may overlap.
    :ivar size: bytes looked at.
    """

    lines: int
    matches: int
    size: int


@dataclass(frozen=True)
class Count:
    """Count lines, and how often a pattern occurs.

    :param pattern: bytes to look for, up to 64; empty: none.
    :raises UsageError: it is longer.
    """

    name: ClassVar[str] = "count"

    pattern: bytes = b""

    def __post_init__(self) -> None:
        check_pattern(self.pattern)

    def encode(self) -> bytes:
        """Return the arguments as the function takes them (``struct pattern_args``)."""
        return encode_pattern(self.pattern)

    def reference(self, data: bytes) -> bytes:
        """Return what the function emits over *data*."""
        matches = start = 0
        while self.pattern and (start := data.find(self.pattern, start) + 1):
            matches += 1
        return _RESULT.pack(data.count(b"\n"), matches, len(data))

    def decode(self, raw: bytes) -> Counted:
        """Return what the function emitted."""
        return Counted(*_RESULT.unpack(raw))
