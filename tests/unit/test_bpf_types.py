# SPDX-License-Identifier: LGPL-2.1-or-later
"""Offsets and ids from hand-made BTF: that of a kernel, and of a module that continues it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.bpf.tracing import Hook
from efuse.bpf.types import KernelTypes
from efuse.errors import NotSupportedError

INT, STRUCT, UNION, TYPEDEF, FUNC, FUNC_PROTO = 1, 4, 5, 8, 12, 13


class Blob:
    """A BTF blob under construction; type ids begin at *first*, string offsets at *base*."""

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


@pytest.fixture
def sysfs(tmp_path: Path) -> Iterator[Path]:
    kernel = Blob()
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
    (tmp_path / "vmlinux").write_bytes(kernel.bytes())
    module = Blob(kernel.next, len(kernel.strings))
    module.struct("fuse_req", 48, ("args", number, 320), ("in", inner, 128))
    module.add(TYPEDEF, "btf_trace_efuse_request", request)
    module.add(TYPEDEF, "btf_trace_fuse_request_end", request)
    (tmp_path / "efuse").write_bytes(module.bytes())
    yield tmp_path


def test_offsets_of_the_kernel(sysfs: Path) -> None:
    with KernelTypes(sysfs=sysfs) as types:
        assert types.module is None
        assert types.size("fuse_req") == 32
        assert types.offset("fuse_req", "args") == 8
        assert types.offset("fuse_req", "in.h.opcode") == 16 + 4
        assert types.offset("fuse_req", "folios") == 24


def test_bit_field(sysfs: Path) -> None:
    with KernelTypes(sysfs=sysfs) as types:
        assert types.bit_offset("fuse_args", "force") == 5
        with pytest.raises(ValueError, match="force does not begin at a byte"):
            types.offset("fuse_args", "force")


def test_module_goes_before_the_kernel(sysfs: Path) -> None:
    with KernelTypes("efuse", sysfs=sysfs) as types:
        assert types.module == "efuse"
        assert types.size("fuse_req") == 48
        assert types.offset("fuse_req", "args") == 40
        assert types.offset("fuse_in_header", "opcode") == 4
        own = Hook("tp_btf", "efuse_request").type_id(types)
        kernels = Hook("tp_btf", "fuse_request_send").type_id(types)
        assert (types.is_own(own), types.is_own(kernels)) == (True, False)
        assert not types.is_own(Hook("fentry", "fuse_request_end").type_id(types))


def test_module_that_is_built_in(sysfs: Path) -> None:
    with KernelTypes("fuse", sysfs=sysfs) as types:
        assert types.module is None
        assert types.offset("fuse_req", "args") == 8


@pytest.mark.parametrize("member", ["pages.h", "in.x", "args.h"])
def test_unknown_member_fails(sysfs: Path, member: str) -> None:
    with (
        KernelTypes(sysfs=sysfs) as types,
        pytest.raises(KeyError, match=f"has no member {member}"),
    ):
        types.offset("fuse_req", member)


def test_unknown_hook_fails(sysfs: Path) -> None:
    with KernelTypes(sysfs=sysfs) as types, pytest.raises(KeyError):
        Hook("tp_btf", "efuse_request").type_id(types)


def test_tracepoint_of_a_name_that_the_kernel_has_fails(sysfs: Path) -> None:
    hook = Hook("tp_btf", "fuse_request_end")
    with (
        KernelTypes("efuse", sysfs=sysfs) as types,
        pytest.raises(NotSupportedError, match="of module efuse: the kernel has one"),
    ):
        hook.type_id(types)
    with KernelTypes(sysfs=sysfs) as types:
        assert hook.type_id(types)


def test_kernel_without_btf_fails(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match=r"ENOENT"):
        KernelTypes(sysfs=tmp_path)
