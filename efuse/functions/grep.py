# SPDX-License-Identifier: LGPL-2.1-or-later
"""``grep``: find the lines that contain a pattern."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import ClassVar

from efuse.errors import UsageError
from efuse.functions.patterns import check_pattern, encode_pattern
from efuse.functions.reference import ReferenceImplementation, whole
from efuse.functions.running import failure

__all__ = ["Grep"]

_BLOCK = 4096
_KEPT = 60 << 10


@dataclass(frozen=True)
class Grep:
    """Emit the lines that contain a pattern, each with its newline; the last one may have none.

    The output is that of ``grep -aF`` in the locale C. Lines may have any length, but if a pattern
    occurs for the first time more than 60 KiB after the beginning of its line, the run fails with
    EOVERFLOW.

    :param pattern: bytes to look for: 1 to 64 bytes without a newline.
    :raises UsageError: the pattern is empty, too long, or contains a newline.
    """

    name: ClassVar[str] = "grep"

    pattern: bytes

    def __post_init__(self) -> None:
        check_pattern(self.pattern)
        if not self.pattern or b"\n" in self.pattern:
            raise UsageError(
                f"cannot search for lines with the pattern {self.pattern!r}",
                hint="a pattern has at least one byte, and no newline",
            )

    def encode(self) -> bytes:
        """Return the arguments as the function takes them (``struct pattern_args``)."""
        return encode_pattern(self.pattern)

    def reference(self, data: bytes) -> bytes:
        """Return the function's output over *data*, the contents of the file.

        :raises EfuseError: the function fails.
        """
        return whole(self.stream(), data)

    def stream(self) -> ReferenceImplementation:
        """Return the function's reference implementation, at the beginning of a file."""
        return _GrepReference(self)

    def decode(self, raw: bytes) -> list[bytes]:
        """Return the lines that the function emitted, without their newlines."""
        return raw.removesuffix(b"\n").split(b"\n") if raw else []


class _GrepReference:
    def __init__(self, call: Grep) -> None:
        self._call = call
        self._position = 0
        """Offset in the file of the data that comes next."""
        self._line = b""
        """The beginning of the current line, which has no match so far."""
        self._cut = 0
        """Bytes of the current line that precede `_line` and are forgotten."""
        self._found = False
        """Whether the current line has a match; its beginning has been emitted."""

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
        """Return the lines of *seen* that have a match. *seen* ends at `_position`."""
        pattern, found = self._call.pattern, []
        base = self._position - len(seen)
        end = -1
        while (match := seen.find(pattern, end + 1)) >= 0:
            start = seen.rfind(b"\n", 0, match) + 1
            # Start of the block in which the match ends: the function keeps the line up to there.
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
        """Keep *line*, the unfinished line at the end of *of* bytes of data."""
        cut = self._cut if len(line) == of else 0
        if len(line) > _KEPT + 2 * _BLOCK:
            kept = len(self._call.pattern) - 1
            cut += len(line) - kept
            line = line[len(line) - kept :]
        self._line, self._cut = line, cut
