# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keep in the cache what was asked of the types of a kernel and a module.

The kernel has more than a hundred thousand types, and parsing them takes most of the time of an
attach. The same few questions come each time, so their answers are stored: one file for each key,
``btf/KEY.json`` in the cache. The `_MAX_FILES` files that were written last are kept. The key
covers everything that an answer depends on:

* the build id of the running kernel, from ``/sys/kernel/notes``, and the size of its BTF, in case
  a tool has replaced the BTF of a built kernel;
* the content of the module's BTF, or that there is none;
* the version of libbpf, and `_VERSION`.

A file is used only if :func:`efuse.locations.read_private` reads it, and its checksum is right.
Otherwise the types are parsed, as without a file. A process reads a file once, and keeps the last
`_MAX_KEPT` indexes.

The file is neither read nor written if the cache is on a FUSE mount: the daemon may be the process
that asks, which would wait for itself, or a daemon that hangs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from efuse import locations
from efuse.btf import TypeMember, reader_version
from efuse.control.mounts import is_on_fuse
from efuse.errors import EfuseError

__all__ = ["TypeIndex"]

# Increase it when the meaning of a question or of an answer changes.
_VERSION = 1
_MAX_ANSWERS = 4096
_MAX_FILES = 64
_MAX_KEPT = 4
_NOTE = struct.Struct("=III")  # struct elf32_note: sizes of name and content, type
_BUILD_ID = (b"GNU\0", 3)


class TypeIndex:
    """Answers about the types of one kernel and one module, by question.

    :param key: everything that the answers depend on, as a digest; empty: they are not stored.
    """

    _kept: ClassVar[dict[str, TypeIndex]] = {}

    def __init__(self, key: str) -> None:
        self._key = key
        self._numbers: dict[str, int | None] = {}
        self._members: dict[str, tuple[TypeMember, ...]] = {}
        self._is_new = False

    @classmethod
    def read(cls, sysfs: Path, module: bytes | None) -> TypeIndex:
        """Return the index, with the stored answers if there are any.

        :param sysfs: directory with ``btf/`` and ``notes`` of the running kernel.
        :param module: content of the module's BTF file; None for the kernel alone.
        """
        key = _key(sysfs, module)
        if (kept := cls._kept.get(key)) is not None:
            return kept
        index = cls(key)
        if path := index._file():
            index._add_stored(path)
        if key:
            index._keep()
        return index

    def _add_stored(self, path: Path) -> None:
        """Take those answers of the file that this index lacks."""
        with contextlib.suppress(OSError, EfuseError, ValueError):
            text = _checked(self._key, locations.read_private(path))
            numbers, members = _answers(json.loads(text))
            self._numbers = {**numbers, **self._numbers}
            self._members = {**members, **self._members}

    def _keep(self) -> None:
        kept = [*self._kept.items(), (self._key, self)]
        type(self)._kept = dict(kept[max(0, len(kept) - _MAX_KEPT) :])

    def _file(self) -> Path | None:
        """Return the file of the answers; None if they are not stored."""
        directory = _directory() if self._key else None
        return directory / f"{self._key}.json" if directory else None

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def number(self, question: str, answer: Callable[[], int | None]) -> int | None:
        """Return the stored answer to *question*, or else call *answer* and keep its result."""
        if question not in self._numbers:
            self._numbers[question] = answer()
            self._is_new = True
        return self._numbers[question]

    def members(
        self, struct: str, answer: Callable[[], tuple[TypeMember, ...]]
    ) -> tuple[TypeMember, ...]:
        """Return the stored members of *struct*, or else call *answer* and keep its result."""
        if struct not in self._members:
            self._members[struct] = answer()
            self._is_new = True
        return self._members[struct]

    def write(self) -> None:
        """Store the answers if some are new. If that fails, the next process parses again."""
        if not self._is_new or len(self._numbers) > _MAX_ANSWERS or not (path := self._file()):
            return
        self._add_stored(path)  # another process may have stored some meanwhile
        members = {
            name: [(member.name, member.type_id, member.bits) for member in found]
            for name, found in dict(self._members).items()
        }
        text = json.dumps({"numbers": dict(self._numbers), "members": members})
        with contextlib.suppress(OSError, EfuseError):
            locations.write(path, f"{_checksum(self._key, text)}\n{text}")
            self._is_new = False
            locations.remove_oldest(path.parent, "*.json", _MAX_FILES)


def _directory() -> Path | None:
    """Return the directory of the files; None if a FUSE daemon would have to answer for it."""
    with contextlib.suppress(EfuseError, RuntimeError):  # RuntimeError: no home directory is known
        if not any(is_on_fuse(str(place / "btf")) for place in locations.candidates()):
            return locations.cache() / "btf"
    return None


def _key(sysfs: Path, module: bytes | None) -> str:
    """Return the digest of everything that answers depend on; empty if that cannot be told."""
    try:
        build_id = _build_id((sysfs / "notes").read_bytes())
        size = (sysfs / "btf" / "vmlinux").stat().st_size
    except (OSError, struct.error):
        return ""
    if not build_id:
        return ""
    own = "" if module is None else hashlib.sha256(module).hexdigest()
    parts = (build_id.hex(), str(size), own, reader_version(), str(_VERSION))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _build_id(notes: bytes) -> bytes:
    """Return the build id in the ELF notes *notes*; empty if there is none."""
    at = 0
    while at < len(notes):
        name_bytes, content_bytes, kind = _NOTE.unpack_from(notes, at)
        start = at + _NOTE.size + (name_bytes + 3 & ~3)
        if (notes[at + _NOTE.size :][:name_bytes], kind) == _BUILD_ID:
            return notes[start : start + content_bytes]
        at = start + (content_bytes + 3 & ~3)
    return b""


def _checked(key: str, content: str) -> str:
    """Return *content* without its first line, the checksum of *key* and the rest.

    :raises ValueError: the checksum is wrong.
    """
    checksum, _, text = content.partition("\n")
    if checksum != _checksum(key, text):
        raise ValueError("the checksum is wrong")
    return text


def _answers(stored: object) -> tuple[dict[str, int | None], dict[str, tuple[TypeMember, ...]]]:
    """Return the numbers and the members that :meth:`TypeIndex.write` has stored.

    :raises ValueError: *stored* has another shape.
    """
    match stored:
        case {"numbers": dict(numbers), "members": dict(members)} if all(
            number is None or isinstance(number, int) for number in numbers.values()
        ):
            return numbers, {name: _members(found) for name, found in members.items()}
    raise ValueError("the answers have another shape")


def _members(stored: object) -> tuple[TypeMember, ...]:
    if not isinstance(stored, list):
        raise ValueError("members are not a list")
    found = []
    for member in stored:
        match member:
            case [str(name), int(type_id), int(bits)]:
                found.append(TypeMember(name, type_id, bits))
            case _:
                raise ValueError("a member has another shape")
    return tuple(found)


def _checksum(key: str, text: str) -> str:
    return hashlib.sha256(f"{key}\n{text}".encode()).hexdigest()
