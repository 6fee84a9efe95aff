# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keys and values of the built-in maps, compared with bytes written by hand."""

from __future__ import annotations

import errno
import os
import zlib
from typing import Any

import pytest

from efuse.bpf.values import (
    Attributes,
    Entry,
    EntryKey,
    Grant,
    GrantKey,
    Stamp,
    Volume,
    XattrKey,
    XattrValue,
    caller_of,
)

STAMP = Stamp(epoch=0x1122334455667788, expires_ns=0x0102030405060708, caller=caller_of(1000, 100))
STAMP_TAIL = bytes.fromhex(
    "00000000"  # flags
    "8877665544332211"  # epoch
    "0807060504030201"  # expires_ns
    "64000000e8030000"  # caller
)


def sealed(seed: bytes, body: bytes) -> bytes:
    covered = STAMP_TAIL + body
    return zlib.crc32(seed + covered).to_bytes(4, "little") + covered


PARENT_1 = bytes.fromhex("0100000000000000")

CASES: list[tuple[Any, bytes, bytes, Any, bytes]] = [
    (
        EntryKey(1, b"ab"),
        PARENT_1 + b"ab" + bytes(254),
        PARENT_1 + b"ab",
        Entry(nodeid=0x2A, generation=3, stamp=STAMP),
        bytes.fromhex("2a000000000000000300000000000000"),
    ),
    (
        XattrKey(5, 22, b"user.x"),
        bytes.fromhex("05000000000000001600000000000000") + b"user.x" + bytes(250),
        bytes.fromhex("050000000000000016000000") + b"user.x",
        XattrValue(b"value", stamp=STAMP),
        bytes.fromhex("00000000000000000000000005000000") + b"value",
    ),
    (
        XattrKey(5, 22, b"user.x"),
        bytes.fromhex("05000000000000001600000000000000") + b"user.x" + bytes(250),
        bytes.fromhex("050000000000000016000000") + b"user.x",
        XattrValue(error=-errno.ENODATA, stamp=STAMP),
        bytes.fromhex("0000000000000000c3ffffff00000000"),
    ),
    (
        GrantKey(7, 14, 0x8000, caller_of(1000, 100)),
        bytes.fromhex("07000000000000000e0000000080000064000000e8030000"),
        bytes.fromhex("07000000000000000e0000000080000064000000e8030000"),
        Grant(open_flags=2, stamp=STAMP),
        bytes.fromhex("0200000000000000"),
    ),
]


@pytest.mark.parametrize(("key", "key_raw", "seed", "value", "body"), CASES)
def test_encoded_keys_and_values_equal_bytes_written_by_hand(
    key: Any, key_raw: bytes, seed: bytes, value: Any, body: bytes
) -> None:
    assert key.encode() == key_raw
    assert type(key).decode(key_raw) == key
    assert key.seed() == seed
    raw = sealed(seed, body).ljust(value.value_bytes, b"\0")
    assert value.encode(seed) == raw
    assert type(value).decode(raw, seed) == value


ATTRIBUTES = Attributes(
    st_ino=2,
    st_mode=0o100644,
    st_nlink=1,
    st_uid=3,
    st_gid=4,
    st_rdev=5,
    st_size=6,
    st_blocks=7,
    st_blksize=4096,
    st_atime_ns=1_000_000_002,
    st_mtime_ns=3_000_000_004,
    st_ctime_ns=5_000_000_006,
    stamp=STAMP,
)
ATTRIBUTES_BODY = bytes.fromhex(
    "0200000000000000 0600000000000000 0700000000000000"  # ino size blocks
    "0100000000000000 0300000000000000 0500000000000000"  # atime mtime ctime
    "02000000 04000000 06000000"  # their nanoseconds
    "a4810000 01000000 03000000 04000000 05000000 00100000 00000000"
)


def test_encoded_attributes_equal_bytes_written_by_hand() -> None:
    seed = bytes.fromhex("0200000000000000")
    assert ATTRIBUTES.encode(seed) == sealed(seed, ATTRIBUTES_BODY)
    assert Attributes.decode(sealed(seed, ATTRIBUTES_BODY), seed) == ATTRIBUTES


def test_attributes_before_1970_survive_encoding() -> None:
    attributes = Attributes(st_ino=1, st_mode=0, st_mtime_ns=-1)
    assert Attributes.decode(attributes.encode(b""), b"").st_mtime_ns == -1


def test_attributes_from_stat_survive_encoding() -> None:
    stat = os.stat(__file__)
    attributes = Attributes.from_stat(stat)
    decoded = Attributes.decode(attributes.encode(b"x"), b"x")
    for field in ("st_ino", "st_mode", "st_size", "st_mtime_ns", "st_blksize", "st_rdev"):
        assert getattr(decoded, field) == getattr(stat, field)


def test_encoded_volume_equals_bytes_written_by_hand() -> None:
    volume = Volume(1, 2, 3, 4, 5, 6, 7, 8, STAMP)
    seed = bytes.fromhex("0100000000000000")
    body = bytes.fromhex(
        "0100000000000000 0200000000000000 0300000000000000 0400000000000000 0500000000000000"
        "06000000 07000000 08000000 00000000"
    ) + bytes(24)
    assert volume.encode(seed) == sealed(seed, body)
    assert Volume.decode(sealed(seed, body), seed) == volume


@pytest.mark.parametrize("at", [0, 4, 8, 16, 24, 28, 32, 47])
def test_decode_of_changed_byte_fails(at: int) -> None:
    raw = bytearray(Entry(9).encode(b"seed"))
    raw[at] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        Entry.decode(bytes(raw), b"seed")


def test_decode_under_another_name_fails() -> None:
    raw = Entry(9).encode(EntryKey(1, b"a").seed())
    with pytest.raises(ValueError, match="checksum"):
        Entry.decode(raw, EntryKey(1, b"b").seed())


def test_blob_bytes_behind_its_length_are_ignored() -> None:
    raw = bytearray(XattrValue(b"abc").encode(b""))
    raw[-1] = 0xFF
    assert XattrValue.decode(bytes(raw), b"").data == b"abc"


def test_name_of_255_bytes_survives_encoding() -> None:
    key = EntryKey(1, bytes(range(1, 256)))
    assert EntryKey.decode(key.encode()) == key


@pytest.mark.parametrize("name", [b"x" * 256, b"a\0b"])
def test_invalid_name_fails(name: bytes) -> None:
    with pytest.raises(ValueError, match="name"):
        EntryKey(1, name).encode()


def test_blob_too_long_fails() -> None:
    with pytest.raises(ValueError, match="976"):
        XattrValue(bytes(977)).encode(b"")
