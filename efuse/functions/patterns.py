# SPDX-License-Identifier: LGPL-2.1-or-later
"""Patterns of bytes, as the functions look for them."""

from __future__ import annotations

import struct

from efuse.errors import UsageError

__all__ = ["MOST_PATTERN", "check_pattern", "encode_pattern"]

MOST_PATTERN = 64
"""Bytes of a pattern at most: bits of a word."""

_ARGS = struct.Struct("<256QQ")


def check_pattern(pattern: bytes) -> None:
    """Raise `UsageError` if a pattern is longer than functions can look for."""
    if len(pattern) > MOST_PATTERN:
        raise UsageError(
            f"cannot look for a pattern of {len(pattern)} bytes: {MOST_PATTERN} are the most"
        )


def encode_pattern(pattern: bytes) -> bytes:
    """Return a pattern as the functions take it (``struct pattern_args``)."""
    accept = [0] * 256
    for position, byte in enumerate(pattern):
        accept[byte] |= 1 << position
    return _ARGS.pack(*accept, 1 << len(pattern) >> 1)
