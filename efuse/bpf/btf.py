# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read what is needed of a module's BTF: ids of functions and structs, offsets of members.

A module's BTF continues the kernel's: its type ids and string offsets count on from there. So
the number of the kernel's types is needed, but none of the types themselves.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from efuse import paths
from efuse.bpf import libbpf
from efuse.errors import NotSupportedError, reason

__all__ = ["Btf", "Member", "module_btf"]

_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
_MEMBER = struct.Struct("<III")

_INT, _ARRAY, _STRUCT, _UNION, _ENUM, _FUNC, _FUNC_PROTO = 1, 3, 4, 5, 6, 12, 13
_VAR, _DATASEC, _DECL_TAG, _ENUM64 = 14, 15, 17, 19
_LAST_KIND = 19

# Bytes behind a type's common part: fixed, and for each of its `vlen` elements.
_FIXED_BYTES = {_INT: 4, _ARRAY: 12, _VAR: 4, _DECL_TAG: 4}
_ELEMENT_BYTES = {_STRUCT: 12, _UNION: 12, _ENUM: 8, _FUNC_PROTO: 8, _DATASEC: 12, _ENUM64: 12}
_FIXED = tuple(_FIXED_BYTES.get(kind, 0) for kind in range(_LAST_KIND + 1))
_ELEMENT = tuple(_ELEMENT_BYTES.get(kind, 0) for kind in range(_LAST_KIND + 1))

_SYSFS = Path("/sys/kernel/btf")


@dataclass(frozen=True)
class Member:
    """A member of a struct.

    :param name: its name.
    :param type_id: BTF id of its type.
    :param offset_bytes: where it lies.
    """

    name: str
    type_id: int
    offset_bytes: int


class Btf:
    """One BTF blob, parsed as far as it is asked.

    :param blob: header, types and strings.
    :param first_id: id of its first type: 1, or the number of types of the BTF it continues plus 1.
    :param base_strings_bytes: size of the string section of the BTF it continues.
    :param base_string: returns the string at an offset of that section.
    :raises ValueError: the blob is damaged.
    """

    def __init__(
        self,
        blob: bytes,
        *,
        first_id: int = 1,
        base_strings_bytes: int = 0,
        base_string: Callable[[int], bytes] | None = None,
    ) -> None:
        if len(blob) < _HEADER.size:
            raise ValueError("the BTF has no header")
        magic, version, _flags, header, types, types_bytes, strings, strings_bytes = (
            _HEADER.unpack_from(blob)
        )
        if magic != _MAGIC or version != 1:
            raise ValueError(f"no BTF of version 1 (magic {magic:#x}, version {version})")
        if max(types + types_bytes, strings + strings_bytes) + header > len(blob):
            raise ValueError("the BTF is cut off")
        self._types = blob[header + types : header + types + types_bytes]
        self._strings = blob[header + strings : header + strings + strings_bytes]
        self._first_id = first_id
        self._base_strings_bytes = base_strings_bytes
        self._base_string = base_string
        self._offsets: list[int] = []
        self._ids: dict[tuple[int, int], int] = {}
        self._walk()

    def _walk(self) -> None:
        """Note where each type lies, and the named functions and structs."""
        at, end = 0, len(self._types)
        while at < end:
            if at + _TYPE.size > end:
                raise ValueError("the BTF's types are cut off")
            name, info, _size = _TYPE.unpack_from(self._types, at)
            kind = info >> 24 & 0x1F
            if not 0 < kind <= _LAST_KIND:
                raise ValueError(f"the BTF has a type of unknown kind {kind}")
            if name and kind in (_FUNC, _STRUCT):
                self._ids[kind, name] = self._first_id + len(self._offsets)
            self._offsets.append(at)
            at += _TYPE.size + _FIXED[kind] + _ELEMENT[kind] * (info & 0xFFFF)

    def __len__(self) -> int:
        return len(self._offsets)

    def function(self, name: str) -> int:
        """Return the BTF id of a function.

        :raises KeyError: there is none of that name.
        """
        return self._find(_FUNC, name)

    def struct(self, name: str) -> int:
        """Return the BTF id of a struct.

        :raises KeyError: there is none of that name.
        """
        return self._find(_STRUCT, name)

    def size(self, type_id: int) -> int:
        """Return the size in bytes of the struct *type_id*."""
        return int(_TYPE.unpack_from(self._types, self._offsets[type_id - self._first_id])[2])

    def members(self, type_id: int) -> tuple[Member, ...]:
        """Return the members of the struct *type_id*, in order."""
        at = self._offsets[type_id - self._first_id]
        _name, info, _size = _TYPE.unpack_from(self._types, at)
        has_bitfields = info >> 31
        found = []
        for i in range(info & 0xFFFF):
            name, member_type, offset = _MEMBER.unpack_from(
                self._types, at + _TYPE.size + i * _MEMBER.size
            )
            bits = offset & 0xFFFFFF if has_bitfields else offset
            found.append(Member(self._string(name).decode(), member_type, bits // 8))
        return tuple(found)

    def _find(self, kind: int, name: str) -> int:
        own = (b"\0" + self._strings).find(b"\0" + name.encode() + b"\0")
        if own >= 0 and (kind, own + self._base_strings_bytes) in self._ids:
            return self._ids[kind, own + self._base_strings_bytes]
        for (found_kind, offset), type_id in self._ids.items():
            if (
                found_kind == kind
                and offset < self._base_strings_bytes
                and self._string(offset) == name.encode()
            ):
                return type_id
        raise KeyError(name)

    def _string(self, offset: int) -> bytes:
        if offset < self._base_strings_bytes:
            return self._base_string(offset) if self._base_string else b""
        start = offset - self._base_strings_bytes
        return self._strings[start : self._strings.index(b"\0", start)]


@contextmanager
def module_btf(name: str, hint: str = "efuse module load") -> Iterator[Btf]:
    """Open the BTF of the loaded module *name*.

    :param hint: what loads it.
    :raises NotSupportedError: it is not loaded, or has no BTF.
    """
    with ExitStack() as stack:
        try:
            blob = (_SYSFS / name).read_bytes()
            kernel = stack.enter_context((_SYSFS / "vmlinux").open("rb", buffering=0))
            base = _KernelStrings(kernel.fileno())
            btf = Btf(
                blob,
                first_id=_kernel_types(base) + 1,
                base_strings_bytes=base.strings_bytes,
                base_string=base.string,
            )
        except FileNotFoundError as error:
            raise NotSupportedError(f"the kernel module {name} is not loaded", hint=hint) from error
        except OSError as error:
            raise NotSupportedError(
                f"cannot read the types of module {name}: {reason(error)}", hint="run as root"
            ) from error
        except ValueError as error:
            raise NotSupportedError(f"cannot read the types of module {name}: {error}") from error
        yield btf


class _KernelStrings:
    """The kernel's string section, read piece by piece: few of its megabytes are needed.

    :param fd: the kernel's BTF; stays the caller's.
    """

    _PIECE_BYTES = 256

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _magic, _version, _flags, length, _types, self.types_bytes, strings, self.strings_bytes = (
            _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        )
        self._start = length + strings

    def string(self, offset: int) -> bytes:
        """Return the string at *offset* of the section."""
        return os.pread(self._fd, self._PIECE_BYTES, self._start + offset).partition(b"\0")[0]


def _kernel_types(base: _KernelStrings) -> int:
    """Return how many types the kernel's own BTF has.

    Counting means to walk all of them, so that the number is kept in the cache, by kernel.
    """
    kernel = os.uname()
    key = f"{kernel.release} {kernel.version} {base.types_bytes} {base.strings_bytes}"
    path = paths.cache() / "kernel-types"
    try:
        cached_key, _, number = path.read_text().strip().rpartition(" = ")
        if cached_key == key:
            return int(number)
    except (OSError, ValueError):
        pass  # none yet, or cut off
    number_of_types = libbpf.count_types(_SYSFS / "vmlinux")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{key} = {number_of_types}\n")
    except OSError:
        pass  # the next attach counts again
    return number_of_types
