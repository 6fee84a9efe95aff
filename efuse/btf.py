# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find functions, structs and the offsets of members in BTF. Nothing else of it is parsed."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["HEADER", "Btf", "Member"]

HEADER = struct.Struct("<HBBIIIII")
"""``struct btf_header``: magic, version, flags, header length; then the offset and the length in
bytes of the type section, and the offset and the length of the string section. Offsets count from
the end of the header."""

_MAGIC = 0xEB9F
_TYPE = struct.Struct("<III")
_MEMBER = struct.Struct("<III")

_INT, _ARRAY, _STRUCT, _UNION, _ENUM, _FUNC, _FUNC_PROTO = 1, 3, 4, 5, 6, 12, 13
_VAR, _DATASEC, _DECL_TAG, _ENUM64 = 14, 15, 17, 19
_LAST_KIND = 19

# Bytes that follow the common part of a type: a fixed part, and one part per `vlen` element.
_FIXED_BYTES = {_INT: 4, _ARRAY: 12, _VAR: 4, _DECL_TAG: 4}
_ELEMENT_BYTES = {_STRUCT: 12, _UNION: 12, _ENUM: 8, _FUNC_PROTO: 8, _DATASEC: 12, _ENUM64: 12}
_FIXED = tuple(_FIXED_BYTES.get(kind, 0) for kind in range(_LAST_KIND + 1))
_ELEMENT = tuple(_ELEMENT_BYTES.get(kind, 0) for kind in range(_LAST_KIND + 1))


@dataclass(frozen=True)
class Member:
    """One member of a struct.

    :param name: name of the member.
    :param type_id: BTF id of its type.
    :param offset_bytes: offset in the struct, in bytes.
    """

    name: str
    type_id: int
    offset_bytes: int


class Btf:
    """One BTF blob. Only the functions and structs that are asked for are decoded.

    :param blob: header, types and strings.
    :param first_id: id of the first type in the blob: 1, or, for split BTF, the number of types of
        the base BTF plus 1.
    :param base_strings_bytes: size of the base BTF's string section, in bytes.
    :param base_string: function that returns the base BTF's string at an offset.
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
        if len(blob) < HEADER.size:
            raise ValueError("the BTF has no header")
        magic, version, _flags, header, types, types_bytes, strings, strings_bytes = (
            HEADER.unpack_from(blob)
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
        """Record the offset of each type, and the ids of the named functions and structs."""
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

    @property
    def repeated_structs(self) -> int:
        """Number of names that more than one struct of this blob has."""
        types = (_TYPE.unpack_from(self._types, at) for at in self._offsets)
        names = Counter(name for name, info, _ in types if name and info >> 24 & 0x1F == _STRUCT)
        return sum(times > 1 for times in names.values())

    def function(self, name: str) -> int:
        """Return the BTF id of a function.

        :raises KeyError: no function has that name.
        """
        return self._find(_FUNC, name)

    def struct(self, name: str) -> int:
        """Return the BTF id of a struct.

        :raises KeyError: no struct has that name.
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
