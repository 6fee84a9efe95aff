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
from efuse.functions.twin import Twin, whole

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
        return whole(self.twin(), data)

    def twin(self) -> Twin:
        """Return its twin in Python."""
        return _Twin(self)

    def decode(self, raw: bytes) -> list[bytes]:
        """Return the lines that the function emitted, without their newlines."""
        return raw.removesuffix(b"\n").split(b"\n") if raw else []


class _Twin:
    def __init__(self, call: Grep) -> None:
        self._call = call
        self._position = 0
        """In the file: of what comes next."""
        self._line = b""
        """The beginning of a line without a match so far."""
        self._cut = 0
        """Bytes before it that were forgotten: a match would come too late."""
        self._found = False
        """The line's beginning has a match, and was emitted."""

    def step(self, data: bytes) -> bytes:
        emitted = b""
        self._position += len(data)
        if self._found:
            end = data.find(b"\n") + 1
            if not end:
                return data
            emitted, data = data[:end], data[end:]
            self._found = False
        return emitted + self._lines(self._line + data)

    def finish(self) -> bytes:
        return b""

    def _lines(self, seen: bytes) -> bytes:
        """Return the lines of *seen* that have a match; it ends where the next data begins."""
        pattern, found = self._call.pattern, []
        base = self._position - len(seen)
        end = -1
        while (match := seen.find(pattern, end + 1)) >= 0:
            start = seen.rfind(b"\n", 0, match) + 1
            # What was looked at before the block in which the pattern ends.
            before = (base + match + len(pattern) - 1) // _BLOCK * _BLOCK
            if before - (base + start - (0 if start else self._cut)) > _KEPT:
                raise failure(self._call.name, errno.EOVERFLOW)
            end = seen.find(b"\n", match)
            if end < 0:
                self._found = True
                end = len(seen)
            found.append(seen[start : end + 1])
        self._remember(seen[max(end, seen.rfind(b"\n")) + 1 :], len(seen))
        return b"".join(found)

    def _remember(self, line: bytes, of: int) -> None:
        """Keep the beginning of a line, which was the end of *of* bytes."""
        cut = self._cut if len(line) == of else 0
        if len(line) > _KEPT + 2 * _BLOCK:
            kept = len(self._call.pattern) - 1
            cut += len(line) - kept
            line = line[len(line) - kept :]
        self._line, self._cut = line, cut


COMMAND = Command(
    Grep,
    example="--pattern error /var/log/syslog",
    options=(
        click.Option(
            ["--pattern"], type=BYTES, required=True, metavar="TEXT", help="Look for TEXT."
        ),
    ),
    fields=lambda lines: {"lines": [line.decode(errors="replace") for line in lines]},
    found=lambda call, pieces: pieces,
)
