# SPDX-License-Identifier: LGPL-2.1-or-later
"""BTF made by hand: of a kernel, and of a module that continues it."""

from __future__ import annotations

import struct

INT, STRUCT, UNION, TYPEDEF, FUNC, FUNC_PROTO = 1, 4, 5, 8, 12, 13


class BtfBuilder:
    """BTF under construction. Type ids begin at *first*, string offsets at *base*."""

    def __init__(self, first: int = 1, base: int = 0) -> None:
        self.next, self.base = first, base
        self.types, self.strings = b"", b"\0" if not base else b""

    def name(self, name: str) -> int:
        if not name:
            return 0
        self.strings += name.encode() + b"\0"
        return self.base + len(self.strings) - len(name) - 1

    def add(self, kind: int, name: str, size: int, rest: bytes = b"", info: int = 0) -> int:
        self.types += struct.pack("<III", self.name(name), kind << 24 | info, size) + rest
        self.next += 1
        return self.next - 1

    def struct(
        self, name: str, size: int, *members: tuple[str, int, int], kind: int = STRUCT
    ) -> int:
        """Add a struct or union; members are (name, type, offset in bits)."""
        rest = b"".join(struct.pack("<III", self.name(n), t, at) for n, t, at in members)
        return self.add(kind, name, size, rest, len(members))

    def bytes(self) -> bytes:
        head = (0xEB9F, 1, 0, 24, 0, len(self.types), len(self.types), len(self.strings))
        return struct.pack("<HBBIIIII", *head) + self.types + self.strings


def kernel_btf() -> BtfBuilder:
    """Return the BTF of a kernel with one type, an int."""
    kernel = BtfBuilder()
    kernel.add(INT, "int", 4, struct.pack("<I", 1 << 24 | 32))
    return kernel


def module_btf(structs: int = 1) -> bytes:
    """Return the BTF of a module for that kernel. One of its structs is there *structs* times."""
    kernel = kernel_btf()
    module = BtfBuilder(kernel.next, len(kernel.strings))
    for _ in range(structs):
        module.struct("efuse_ops", 8, ("flags", 1, 0), ("pad", 1, 32))
    module.struct("other", 4, ("one", 1, 0))
    return module.bytes()
