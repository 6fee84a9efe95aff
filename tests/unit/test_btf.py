# SPDX-License-Identifier: LGPL-2.1-or-later
"""Offsets and ids from hand-made BTF: that of a kernel, and of a module that continues it."""

from __future__ import annotations

from pathlib import Path

import pytest

from efuse.bpf.kernel_types import KernelTypes
from efuse.bpf.tracing import Hook
from efuse.errors import NotSupportedError
from tests.unit.btf_builder import write_types


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    write_types(tmp_path)
    return tmp_path


def test_offsets_are_found_in_the_types_of_the_kernel(sysfs: Path) -> None:
    with KernelTypes(sysfs=sysfs) as types:
        assert types.module is None
        assert types.size("fuse_req") == 32
        assert types.offset("fuse_req", "args") == 8
        assert types.offset("fuse_req", "in.h.opcode") == 16 + 4
        assert types.offset("fuse_req", "folios") == 24


def test_bit_field_has_a_bit_offset_and_no_byte_offset(sysfs: Path) -> None:
    with KernelTypes(sysfs=sysfs) as types:
        assert types.bit_offset("fuse_args", "force") == 5
        with pytest.raises(ValueError, match="force does not begin at a byte"):
            types.offset("fuse_args", "force")


def test_types_of_the_module_are_preferred_to_those_of_the_kernel(sysfs: Path) -> None:
    with KernelTypes("efuse", sysfs=sysfs) as types:
        assert types.module == "efuse"
        assert types.size("fuse_req") == 48
        assert types.offset("fuse_req", "args") == 40
        assert types.offset("fuse_in_header", "opcode") == 4
        own = Hook("tp_btf", "efuse_request").type_id(types)
        kernels = Hook("tp_btf", "fuse_request_send").type_id(types)
        assert (types.is_own(own), types.is_own(kernels)) == (True, False)
        assert not types.is_own(Hook("fentry", "fuse_request_end").type_id(types))


def test_types_of_a_builtin_module_are_those_of_the_kernel(sysfs: Path) -> None:
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


def test_own_types_are_found_only_in_the_module(sysfs: Path) -> None:
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
    whole = (sysfs / "btf/efuse").read_bytes()
    (sysfs / "btf/efuse").write_bytes(whole[:length])
    with pytest.raises(NotSupportedError, match="cannot read the types of module efuse: "):
        KernelTypes("efuse", sysfs=sysfs)
    assert capfd.readouterr() == ("", "")
