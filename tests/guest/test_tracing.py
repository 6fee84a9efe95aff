# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test programs at hooks of the kernel's FUSE and of efuse.ko, with offsets from BTF."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from efuse import opcodes
from efuse.bpf import libbpf
from efuse.bpf.compile import compile_text
from efuse.bpf.kernel_types import KernelTypes
from efuse.bpf.members import TRACING
from efuse.bpf.tracing import Hook, Tracer
from efuse.errors import NotSupportedError
from tests.guest.support.forked import efuse
from tests.guest.support.shell import run

TEXT = """
#include "tracing.bpf.h"

FIELD(req_opcode, 1, fuse_req, in.h.opcode)
EITHER(req_owner, 2, fuse_req, chan, fuse_req, fm)
EITHER(owner_conn, 3, fuse_chan, conn, fuse_mount, fc)
FIELD(conn_dev, 4, fuse_conn, dev)
SIZE(args_size, 5, fuse_args)

BPF_TABLE("hash", u32, u32, devices, 8);
BPF_TABLE("array", int, u64, counts, 64);

int sent(u64 *ctx)
{
	u64 req = ctx[0], owner = 0, conn = 0, *count;
	u32 dev = 0, opcode = 0;

	if (!req)
		return 0;
	READ(opcode, req, req_opcode());
	READ(owner, req, req_owner());
	READ(conn, owner, owner_conn());
	READ(dev, conn, conn_dev());
	if (!devices.lookup(&dev))
		return 0;
	count = counts.lookup(&opcode);
	if (count)
		lock_xadd(count, 1);
	opcode = 63;
	count = counts.lookup(&opcode);
	if (count)
		*count = args_size();
	return 0;
}
"""
HOOKS = {
    "tracepoint": Hook("tp_btf", "fuse_request_send"),
    "function": Hook("fentry", "fuse_request_end"),
}


@contextmanager
def mounted(mountpoint: Path, *options: str) -> Iterator[None]:
    source = mountpoint.parent / "source"
    source.mkdir()
    (source / "file").write_bytes(b"x")
    efuse("mount", "passthrough", *options, source, mountpoint)
    try:
        yield
    finally:
        run("umount", mountpoint)


@pytest.mark.parametrize(
    ("module", "hook", "options"),
    [
        ("fuse", "tracepoint", ["--plain"]),
        ("fuse", "function", ["--plain"]),
        ("efuse", "function", ["--consistency", "strict"]),
    ],
)
def test_tracing_program_counts_the_requests_of_a_mount(
    mountpoint: Path, module: str, hook: str, options: list[str]
) -> None:
    spec = compile_text(TEXT, "counts.c", interface=TRACING)
    with mounted(mountpoint, *options):
        dev = mountpoint.stat().st_dev
        with Tracer(spec, {"sent": HOOKS[hook]}, module=module) as tracer:
            counts = tracer.maps["counts"]
            (mountpoint / "gone").exists()
            assert not any(counts.values())
            tracer.maps["devices"][os.major(dev) << 20 | os.minor(dev)] = 1
            for _ in range(3):
                assert not (mountpoint / "gone").exists()
            assert counts[opcodes.number("lookup")] == 3
            assert counts[opcodes.number("unlink")] == 0
            # The size is that of the module's struct, not of the kernel's struct with the same
            # name.
            with KernelTypes(module) as types, KernelTypes() as kernels:
                assert counts[63] == types.size("fuse_args")
                assert (counts[63] > kernels.size("fuse_args")) == (module == "efuse")


def test_closed_tracer_leaves_no_links(mountpoint: Path) -> None:
    spec = compile_text(TEXT, "counts.c", interface=TRACING)
    before = set(libbpf.link_ids())
    with Tracer(spec, {"sent": HOOKS["tracepoint"]}, module="fuse"):
        assert len(set(libbpf.link_ids()) - before) == 1
    assert set(libbpf.link_ids()) <= before


def test_hook_or_member_that_the_kernel_lacks_fails() -> None:
    spec = compile_text(TEXT, "counts.c", interface=TRACING)
    with pytest.raises(NotSupportedError, match="no tracepoint fuse_nonsense"):
        Tracer(spec, {"sent": Hook("tp_btf", "fuse_nonsense")}, module="fuse")
    with pytest.raises(NotSupportedError, match="of module efuse: the kernel has one"):
        Tracer(spec, {"sent": HOOKS["tracepoint"]}, module="efuse")
    spec = compile_text(
        TEXT.replace("fuse_conn, dev)", "fuse_conn, nonsense)"), "counts.c", interface=TRACING
    )
    with pytest.raises(NotSupportedError, match="struct fuse_conn has no nonsense"):
        Tracer(spec, {"sent": HOOKS["tracepoint"]}, module="fuse")
