# SPDX-License-Identifier: LGPL-2.1-or-later
"""``crc32c``: a checksum."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

__all__ = ["Crc32c"]

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reversed: RFC 3720, appendix B.4.


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


@dataclass(frozen=True)
class Crc32c:
    """The CRC-32C of a file, as iSCSI and ext4 have it."""

    name: ClassVar[str] = "crc32c"

    def encode(self) -> bytes:
        """Return the arguments as the function takes them (``struct crc32c_args``)."""
        return struct.pack("<256I", *_table())

    def reference(self, data: bytes) -> bytes:
        """Return what the function emits over *data*."""
        table = _table()
        crc = 0xFFFFFFFF
        for byte in data:
            crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        return struct.pack("<I", crc ^ 0xFFFFFFFF)

    def decode(self, raw: bytes) -> int:
        """Return what the function emitted."""
        (crc,) = struct.unpack("<I", raw)
        return int(crc)
