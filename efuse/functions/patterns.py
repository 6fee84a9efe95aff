# SPDX-License-Identifier: LGPL-2.1-or-later
"""Patterns of bytes in the form in which functions take them."""

from __future__ import annotations

import struct

from efuse.errors import UsageError

__all__ = ["check_pattern", "encode_pattern"]

MOST_PATTERN = 64
"""Most bytes of a pattern: one bit of a word for each."""

_ARGS = struct.Struct("<256QQ")


def check_pattern(pattern: bytes) -> None:
    """Check the length of a pattern.

    :raises UsageError: the pattern is longer than `MOST_PATTERN`.
    """
    if len(pattern) > MOST_PATTERN:
        raise UsageError(
            f"cannot search for a pattern of {len(pattern)} bytes: the maximum is {MOST_PATTERN}"
        )


def encode_pattern(pattern: bytes) -> bytes:
    """Return a pattern in the form in which functions take it (``struct pattern_args``)."""
    accept = [0] * 256
    for position, byte in enumerate(pattern):
        accept[byte] |= 1 << position
    return _ARGS.pack(*accept, 1 << len(pattern) >> 1)
