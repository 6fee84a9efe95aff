# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a workload did to its files, and what a crash at some moment may leave of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Content = bytes | None
"""Content of a file; None: there is no file of this name."""

_PART = 512
"""Size of the parts that are compared as a whole, in bytes."""


@dataclass(frozen=True, slots=True)
class _Version:
    """A content that a file had.

    :ivar content: the content.
    :ivar whole: whether it replaced the former content as a whole (a rename, a removal).
    :ivar issued: number of marks that were in the log before the change began.
    """

    content: Content
    whole: bool
    issued: int


@dataclass
class _File:
    """A name with its versions.

    :ivar versions: its versions, the oldest first.
    :ivar acknowledged: for each acknowledgement the number of its mark, and the index of the
        version that was then the last one.
    """

    versions: list[_Version] = field(default_factory=lambda: [_Version(None, True, 0)])
    acknowledged: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])


class History:
    """The versions of all files, in order with the marks in the log of block writes."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self.marks = 0
        """Number of marks so far. The mark before the first change is number 0."""

    def names(self) -> list[str]:
        """Return the names of the files that exist now."""
        return [name for name in self._files if self.content(name) is not None]

    def content(self, name: str) -> Content:
        """Return the present content of a file."""
        file = self._files.get(name)
        return file.versions[-1].content if file else None

    def is_pending(self, name: str) -> bool:
        """Return whether a change of the file is not acknowledged yet."""
        file = self._files.get(name)
        return bool(file) and file.acknowledged[-1][1] != len(file.versions) - 1

    def change(self, name: str, content: Content, *, whole: bool = False) -> None:
        """Note a change. Call this before the change begins.

        :param content: the content afterwards.
        :param whole: whether a crash leaves either all of the change or nothing.
        """
        file = self._files.setdefault(name, _File())
        file.versions.append(_Version(content, whole, self.marks))

    def acknowledge(self, *names: str) -> int:
        """Note that the last version of each file is on the disk.

        :returns: the number of the mark, which the caller then puts into the log.
        """
        self.marks += 1
        for name in names:
            file = self._files[name]
            file.acknowledged.append((self.marks, len(file.versions) - 1))
        return self.marks

    def violations(
        self, found: Mapping[str, bytes], marks: int, *, at_mark: bool = False
    ) -> list[str]:
        """Return what is wrong with the files that a crash left.

        :param found: the files after the crash.
        :param marks: number of the last mark before the crash.
        :param at_mark: whether the crash came right at that mark.
        """
        wrong = [f"{name} never existed" for name in found if name not in self._files]
        for name, file in self._files.items():
            why = _violation(file, found.get(name), marks, at_mark)
            if why:
                wrong.append(f"{name} {why}")
        return wrong


def _violation(file: _File, found: Content, marks: int, at_mark: bool) -> str:
    base = max(index for mark, index in file.acknowledged if mark <= marks)
    newest = marks - 1 if at_mark else marks
    possible = [file.versions[base]]
    possible += [v for v in file.versions[base + 1 :] if v.issued <= newest]
    contents = [version.content for version in possible]
    if found in contents:
        return ""
    if found is None:
        return "is lost"
    first, *others = [_difference_of(found, segment) for segment in _segments(possible)]
    return first if all(others) else ""


def _segments(versions: Sequence[_Version]) -> list[list[Content]]:
    """Return the contents of versions, divided before each that replaced the one before as a whole.

    A crash may leave a mix of the contents of one segment, and never of two.
    """
    segments: list[list[Content]] = []
    for version in versions:
        if version.whole or not segments:
            segments.append([])
        segments[-1].append(version.content)
    return segments


def _difference_of(found: bytes, contents: Sequence[Content]) -> str:
    """Return why a file is no mix of contents that it had one after the other."""
    if len(contents) == 1:
        return _difference(found, contents[0])
    known = [content for content in contents if content is not None]
    sizes = [len(content) for content in known] + [0] * (len(known) < len(contents))
    least, most = min(sizes), max(sizes)
    if not least <= len(found) <= most:
        return f"has {len(found)} bytes, not {least} to {most}"
    for begin in range(0, len(found), _PART):
        end = begin + _PART
        if any(content[begin:end] == found[begin:end] for content in known):
            continue
        for at, byte in enumerate(found[begin:end], begin):
            # A file that grows may have a hole for a moment.
            is_hole = byte == 0 and at >= least
            if not is_hole and byte not in {c[at] for c in known if at < len(c)}:
                return f"has a byte at {at} that was never written there"
    return ""


def _difference(found: bytes, expected: Content) -> str:
    if expected is None:
        return "is still there"
    if len(found) != len(expected):
        return f"has {len(found)} bytes, not {len(expected)}"
    if found == expected:
        return ""
    at = next(n for n, (one, two) in enumerate(zip(found, expected, strict=True)) if one != two)
    return f"has another byte at {at}"
