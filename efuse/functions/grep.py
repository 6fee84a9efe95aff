# SPDX-License-Identifier: LGPL-2.1-or-later
"""``grep``: the lines that a pattern occurs in."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import ClassVar

import click

from efuse.errors import UsageError
from efuse.functions.command import BYTES, Command
from efuse.functions.patterns import check_pattern, encode_pattern
from efuse.functions.running import failure

__all__ = ["COMMAND", "Grep"]

_BLOCK = 4096
_KEPT = 60 << 10


@dataclass(frozen=True)
class Grep:
    """Emit the lines that a pattern occurs in, each with its newline, which the last may lack.

    As ``grep -aF`` in the locale C. A line may be of any length, but in one of more than 60 KiB
    the pattern has to occur in the first 60 KiB, or the run fails with EOVERFLOW.

    :param pattern: bytes to look for, 1 to 64 without a newline.
    :raises UsageError: it is none.
    """

    name: ClassVar[str] = "grep"

    pattern: bytes

    def __post_init__(self) -> None:
        check_pattern(self.pattern)
        if not self.pattern or b"\n" in self.pattern:
            raise UsageError(
                f"cannot look for lines with the pattern {self.pattern!r}",
                hint="at least one byte, and no newline",
            )

    def encode(self) -> bytes:
        """Return the arguments as the function takes them (``struct pattern_args``)."""
        return encode_pattern(self.pattern)

    def reference(self, data: bytes) -> bytes:
        """Return what the function emits over *data*.

        :raises EfuseError: it fails.
        """
        found = []
        end = -1
        while (match := data.find(self.pattern, end + 1)) >= 0:
            start = data.rfind(b"\n", 0, match) + 1
            end = data.find(b"\n", match)
            end = end if end >= 0 else len(data)
            # What was looked at before the block in which the pattern ends.
            before = (match + len(self.pattern) - 1) // _BLOCK * _BLOCK
            if before - start > _KEPT:
                raise failure(self.name, errno.EOVERFLOW)
            found.append(data[start : end + 1])
        return b"".join(found)

    def decode(self, raw: bytes) -> list[bytes]:
        """Return the lines that the function emitted, without their newlines."""
        return raw.removesuffix(b"\n").split(b"\n") if raw else []


COMMAND = Command(
    Grep,
    example="error /var/log/syslog",
    options=(click.Argument(["pattern"], type=BYTES),),
    fields=lambda lines: {"lines": [line.decode(errors="replace") for line in lines]},
    found=lambda call, pieces: pieces,
)
