# SPDX-License-Identifier: LGPL-2.1-or-later
"""Offsets and ids from hand-made BTF: that of a kernel, and of a module that continues it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.bpf.tracing import Hook
from efuse.btf import KernelTypes
from efuse.errors import NotSupportedError
from tests.unit.btf_builder import FUNC, FUNC_PROTO, INT, STRUCT, TYPEDEF, UNION, BtfBuilder


@pytest.fixture
def sysfs(tmp_path: Path) -> Iterator[Path]:
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
    (tmp_path / "vmlinux").write_bytes(kernel.bytes())
    module = BtfBuilder(kernel.next, len(kernel.strings))
    module.struct("fuse_req", 48, ("args", number, 320), ("in", inner, 128))
    own = module.add(FUNC_PROTO, "", 0)
    module.add(FUNC, "efuse_req_uid", own)
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


def test_own_types_are_not_those_of_the_kernel(sysfs: Path) -> None:
    with KernelTypes("efuse", load="efuse module load", sysfs=sysfs) as types:
        assert types.is_own(types.own_struct("fuse_req"))
        assert types.is_own(types.own_function("efuse_req_uid"))
        assert [(m.name, m.bits) for m in types.members("fuse_req")] == [("args", 320), ("in", 128)]
        for find in (types.own_function, types.own_struct):
            with pytest.raises(KeyError):
                find("fuse_request_end")


def test_module_that_is_not_loaded_fails(sysfs: Path) -> None:
    with pytest.raises(NotSupportedError, match="module csd is not loaded") as caught:
        KernelTypes("csd", load="efuse module load --csd", sysfs=sysfs)
    assert caught.value.hint == "efuse module load --csd"


@pytest.mark.parametrize("length", [0, 20, -1])
def test_damaged_btf_of_a_module_fails(
    sysfs: Path, length: int, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = (sysfs / "efuse").read_bytes()
    (sysfs / "efuse").write_bytes(whole[:length])
    with pytest.raises(NotSupportedError, match="cannot read the types of module efuse: "):
        KernelTypes("efuse", sysfs=sysfs)
    assert capfd.readouterr() == ("", "")
