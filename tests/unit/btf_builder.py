# SPDX-License-Identifier: LGPL-2.1-or-later
"""BTF made by hand: of a kernel, and of a module that continues it."""

from __future__ import annotations

import struct
from pathlib import Path

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


def write_types(sysfs: Path, module_args: int = 40) -> None:
    """Write the BTF of a kernel and of its module ``efuse`` to ``sysfs/btf``.

    :param module_args: offset of ``args`` in the module's ``struct fuse_req``, in bytes.
    """
    (sysfs / "btf").mkdir(parents=True, exist_ok=True)
    kernel = BtfBuilder()
    number = kernel.add(INT, "int", 4, struct.pack("<I", 1 << 24 | 32))
    header = kernel.struct("fuse_in_header", 8, ("len", number, 0), ("opcode", number, 32))
    alias = kernel.add(TYPEDEF, "header_t", header)
    inner = kernel.struct("", 8, ("h", alias, 0))
    anonymous = kernel.struct("", 8, ("pages", number, 0), ("folios", number, 0), kind=UNION)
    request = kernel.struct(
        "fuse_req", 32, ("args", number, 64), ("in", inner, 128), ("", anonymous, 192)
    )
    prototype = kernel.add(FUNC_PROTO, "", 0)
    kernel.add(FUNC, "fuse_request_end", prototype)
    kernel.add(TYPEDEF, "btf_trace_fuse_request_send", prototype)
    kernel.add(TYPEDEF, "btf_trace_fuse_request_end", prototype)
    # A bit field of two bits: kind_flag is set, and the width is above the offset.
    flags = struct.pack("<III", kernel.name("force"), number, 1 << 24 | 5)
    kernel.add(STRUCT, "fuse_args", 8, flags, 1 << 31 | 1)
    (sysfs / "btf" / "vmlinux").write_bytes(kernel.bytes())
    module = BtfBuilder(kernel.next, len(kernel.strings))
    module.struct("fuse_req", 48, ("args", number, 8 * module_args), ("in", inner, 128))
    own = module.add(FUNC_PROTO, "", 0)
    module.add(FUNC, "efuse_req_uid", own)
    module.add(TYPEDEF, "btf_trace_efuse_request", request)
    module.add(TYPEDEF, "btf_trace_fuse_request_end", request)
    (sysfs / "btf" / "efuse").write_bytes(module.bytes())
