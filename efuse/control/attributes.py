# SPDX-License-Identifier: LGPL-2.1-or-later
"""Represent sysfs files as typed attributes of a class."""

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, overload

from efuse.errors import ControlError, reason

__all__ = [
    "Attribute",
    "choice",
    "count",
    "number",
    "read_file",
    "read_files",
    "switch",
    "text",
    "trigger",
]

T = TypeVar("T")

_HINTS = {
    errno.ENOENT: "is it still mounted? `efuse stat` lists the connections",
    errno.ENODEV: "the file system has been unmounted",
    errno.EACCES: "run it as root",
    errno.EPERM: "run it as root",
    errno.EINVAL: "`efuse ctl list` shows the range of each attribute",
}


class Node(Protocol):
    """A sysfs directory whose files are the attributes."""

    @property
    def path(self) -> Path: ...


def _error(verb: str, path: Path, e: OSError) -> ControlError:
    shown = _path_of(path.parent) / path.name
    return ControlError(f"cannot {verb} {shown}: {reason(e)}", hint=_HINTS.get(e.errno or 0))


def _path_of(directory: Path) -> Path:
    """Return the real path of *directory*, which may be a descriptor below /proc/self/fd."""
    if directory.parent != Path("/proc/self/fd"):
        return directory
    return Path(str(directory.readlink()).removesuffix(" (deleted)"))


def read_file(path: Path) -> str:
    """Return the content of a sysfs file, without the final newline.

    :raises ControlError: the file cannot be read.
    """
    try:
        return _text(path)
    except OSError as e:
        raise _error("read", path, e) from e


def read_files(directory: Path, names: Iterable[str]) -> list[str]:
    """Return the content of several files of one directory, in order, without final newlines.

    :raises ControlError: a file cannot be read.
    """
    found = []
    name = "."
    try:
        parent = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names:
                found.append(_text(name, parent))
        finally:
            os.close(parent)
    except OSError as e:
        raise _error("read", directory / name, e) from e
    return found


def _text(path: str | Path, parent: int | None = None) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=parent)
    try:
        return os.read(fd, 4096).decode(errors="replace").rstrip("\n")
    finally:
        os.close(fd)


def _write_file(path: Path, value: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)
    except OSError as e:
        raise _error("write", path, e) from e


class Attribute(Generic[T]):
    """One sysfs file: how its text becomes a value, and what the value means.

    ``name`` is the path of the file, relative to the directory. By default it is the name of the
    class attribute, without a leading ``_``. ``mode`` holds the permissions of the file. ``unit``,
    ``range`` and ``default`` describe the value in words. ``doc`` is one sentence.
    """

    name: str

    def __init__(
        self,
        parse: Callable[[str], T],
        show: Callable[[T], str],
        *,
        doc: str,
        mode: int = 0o444,
        unit: str = "",
        range: str = "",
        default: str = "",
        file: str = "",
    ) -> None:
        self.name = file
        self.parse = parse
        self.show = show
        self.doc = doc
        self.mode = mode
        self.unit = unit
        self.range = range
        self.default = default

    @property
    def readable(self) -> bool:
        return bool(self.mode & 0o400)

    @property
    def writable(self) -> bool:
        return bool(self.mode & 0o200)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name.removeprefix("_")

    @overload
    def __get__(self, node: None, owner: type) -> "Attribute[T]": ...
    @overload
    def __get__(self, node: Node, owner: type) -> T: ...
    def __get__(self, node: Node | None, owner: type) -> "Attribute[T] | T":
        if node is None:
            return self
        if not self.readable:
            raise ControlError(f"{self.name} can only be written", hint=f"write 1: {self.doc}")
        raw = read_file(node.path / self.name)
        try:
            return self.parse(raw)
        except ValueError as e:
            raise ControlError(
                f"{node.path / self.name} holds {raw!r}, which is not {self.range}",
                hint="the module and this package may differ in version: efuse doctor",
            ) from e

    def __set__(self, node: Node, value: T) -> None:
        if not self.writable:
            raise ControlError(f"{self.name} can only be read")
        _write_file(node.path / self.name, self.show(value))

    def set_text(self, node: Any, word: str) -> None:
        """Write the value that the user typed as *word*.

        :raises ControlError: *word* is not a value of this attribute, or the kernel refuses it.
        """
        try:
            value = self.parse(word)
        except ValueError as e:
            raise ControlError(
                f"{self.name} cannot be {word!r} (EINVAL)", hint=f"the range is {self.range}"
            ) from e
        self.__set__(node, value)


def text(doc: str, *, range: str = "text", default: str = "") -> Attribute[str]:
    """Return a read-only attribute that holds a word or a line."""
    return Attribute(str, str, doc=doc, range=range, default=default)


def number(
    doc: str,
    *,
    unit: str = "",
    mode: int = 0o444,
    range: str = "0 to 2^64-1",
    default: str = "0",
    file: str = "",
) -> Attribute[int]:
    """Return a read-only attribute that holds an unsigned number."""
    return Attribute(
        _unsigned,
        str,
        doc=doc,
        mode=mode,
        unit=unit,
        range=range,
        default=default,
        file=file,
    )


def count(
    doc: str,
    *,
    unit: str,
    most: int,
    least: int = 0,
    step: int = 1,
    default: int = 0,
    file: str = "",
) -> Attribute[int]:
    """Return a writable attribute: a multiple of *step* in the range *least* to *most*."""

    def parse(word: str) -> int:
        value = _unsigned(word)
        if not least <= value <= most or value % step:
            raise ValueError(word)
        return value

    return Attribute(
        parse,
        str,
        doc=doc,
        mode=0o644,
        unit=unit,
        range=f"{least} to {most}" + (f", multiples of {step}" if step > 1 else ""),
        default=str(default),
        file=file,
    )


def switch(doc: str, *, mode: int = 0o644, default: str = "0") -> Attribute[bool]:
    """Return an attribute that is ``0`` or ``1``."""
    return Attribute(
        _bool, lambda on: "01"[bool(on)], doc=doc, mode=mode, range="0 or 1", default=default
    )


def choice(doc: str, words: tuple[str, ...], default: str, file: str = "") -> Attribute[str]:
    """Return a writable attribute that is one of *words*."""

    def parse(word: str) -> str:
        if word not in words:
            raise ValueError(word)
        return word

    return Attribute(
        parse, parse, doc=doc, mode=0o644, range=" or ".join(words), default=default, file=file
    )


def trigger(doc: str) -> Attribute[bool]:
    """Return a write-only attribute: writing ``1`` triggers an action."""
    return Attribute(_one, lambda _: "1", doc=doc, mode=0o200, range="1")


def _unsigned(word: str) -> int:
    if not (word.isascii() and word.isdigit()):
        raise ValueError(word)
    return int(word)


def _bool(word: str) -> bool:
    if word not in ("0", "1"):
        raise ValueError(word)
    return word == "1"


def _one(word: str) -> bool:
    if word != "1":
        raise ValueError(word)
    return True
