# SPDX-License-Identifier: LGPL-2.1-or-later
"""The BTF parser on a small hand-made blob, by itself and as the continuation of another one."""

from __future__ import annotations

import struct

import pytest

from efuse.btf import Btf, Member

STRINGS = b"\0int\0efuse_ops\0lookup\0name\0efuse_req_uid\0"


def at(name: bytes) -> int:
    return (STRINGS.index(b"\0" + name + b"\0") + 1) if name else 0


def common(name: bytes, kind: int, elements: int, size_or_type: int, base: int = 0) -> bytes:
    offset = at(name) + base if name else 0
    return struct.pack("<III", offset, kind << 24 | elements, size_or_type)


def blob(first_id: int = 1, base: int = 0, structs: int = 1) -> bytes:
    """Return a blob with an int, an enum, a prototype, a struct, a datasec and a function.

    The struct has two members. It is repeated at the end until there are *structs* of it.
    """
    ids = first_id
    types = common(b"int", 1, 0, 4, base) + struct.pack("<I", 1 << 24 | 32)  # ids
    types += common(b"", 6, 2, 4) + struct.pack("<IiIi", 0, 1, 0, 2)  # ids + 1: enum
    types += common(b"", 13, 1, ids) + struct.pack("<II", 0, ids)  # ids + 2: prototype
    ops = common(b"efuse_ops", 4, 2, 40, base)  # ids + 3: struct
    ops += struct.pack("<III", at(b"lookup") + base, ids + 2, 0)
    ops += struct.pack("<III", at(b"name") + base, ids, 8 * 8)
    types += ops
    types += common(b"", 15, 1, 4) + struct.pack("<III", ids, 0, 4)  # ids + 4: datasec
    types += common(b"efuse_req_uid", 12, 1, ids + 2, base)  # ids + 5: function
    types += (structs - 1) * ops
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(STRINGS))
    return header + types + STRINGS


def test_btf_alone() -> None:
    btf = Btf(blob())
    assert len(btf) == 6
    assert btf.struct("efuse_ops") == 4
    assert btf.size(4) == 40
    assert btf.function("efuse_req_uid") == 6
    assert btf.members(4) == (Member("lookup", 3, 0), Member("name", 1, 8))


@pytest.mark.parametrize(("structs", "repeated"), [(1, 0), (2, 1), (3, 1)])
def test_structs_that_are_there_more_than_once(structs: int, repeated: int) -> None:
    assert Btf(blob(structs=structs)).repeated_structs == repeated


def test_btf_that_continues_another() -> None:
    base = b"\0" + b"b" * 99
    btf = Btf(
        blob(1001, len(base)),
        first_id=1001,
        base_strings_bytes=len(base),
        base_string=lambda offset: base[offset:],
    )
    assert btf.struct("efuse_ops") == 1004
    assert btf.function("efuse_req_uid") == 1006
    assert [m.name for m in btf.members(1004)] == ["lookup", "name"]


def test_btf_name_in_the_base_strings() -> None:
    # The same blob with an empty string section: all names are in the base.
    whole = blob()
    types = whole[24 : -len(STRINGS)]
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), 1)
    btf = Btf(
        header + types + b"\0",
        first_id=51,
        base_strings_bytes=len(STRINGS),
        base_string=lambda offset: STRINGS[offset:].partition(b"\0")[0],
    )
    assert btf.struct("efuse_ops") == 54
    assert btf.function("efuse_req_uid") == 56


def test_btf_without_the_name_fails() -> None:
    with pytest.raises(KeyError):
        Btf(blob()).function("efuse_ops")


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\0" * 64, blob()[:-1], blob()[:40], blob()[:24] + b"\xff" * 12 + blob()[36:]],
)
def test_btf_damaged_fails(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="BTF"):
        Btf(damaged)
