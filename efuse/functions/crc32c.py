# SPDX-License-Identifier: LGPL-2.1-or-later
"""``crc32c``: compute a checksum."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from efuse.functions.reference import ReferenceImplementation, whole

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
    """Compute the CRC-32C of a file: the checksum of iSCSI and ext4."""

    name: ClassVar[str] = "crc32c"

    def encode(self) -> bytes:
        """Return the arguments as the function takes them (``struct crc32c_args``)."""
        return struct.pack("<256I", *_table())

    def reference(self, data: bytes) -> bytes:
        """Return the function's output over *data*, the contents of the file."""
        return whole(self.stream(), data)

    def stream(self) -> ReferenceImplementation:
        """Return the function's reference implementation, at the beginning of a file."""
        return _Crc32cReference()

    def decode(self, raw: bytes) -> int:
        """Return the checksum that the function emitted."""
        (crc,) = struct.unpack("<I", raw)
        return int(crc)


class _Crc32cReference:
    def __init__(self) -> None:
        self._table = _table()
        self._crc = 0xFFFFFFFF

    def step(self, data: bytes) -> bytes:
        table, crc = self._table, self._crc
        for byte in data:
            crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        self._crc = crc
        return b""

    def finish(self) -> bytes:
        return struct.pack("<I", self._crc ^ 0xFFFFFFFF)
