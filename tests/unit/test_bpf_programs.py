# SPDX-License-Identifier: LGPL-2.1-or-later
"""The built-in handlers and the kernel's headers; the verifier's log as one line."""

from __future__ import annotations

import re

from efuse import locations
from efuse.bpf.compile import builtin_sources
from efuse.bpf.members import MEMBERS
from efuse.bpf.spec import Line, ProgramSpec
from efuse.bpf.verifier import explain


def test_members_equal_those_of_the_kernels_struct() -> None:
    header = (locations.data("kernel_patches") / "src" / "efuse_ops.h").read_text()
    assert tuple(re.findall(r"\(\*(\w+)\)\(", header)) == MEMBERS


def test_declared_kfuncs_equal_those_of_the_kernel() -> None:
    kernel = (locations.data("kernel_patches") / "src" / "kfuncs.h").read_text()
    declared = (locations.data("bpf_programs") / "include" / "efuse.bpf.h").read_text()
    kfuncs = re.findall(r"^(?:const )?\w+ \*?(efuse_\w+)\(struct", kernel, re.MULTILINE)
    numbers = re.findall(r"\(\*(\w+)\)\([^;]*?EFUSE_KFUNC\((\d+)\)", declared)
    assert [name for name, _ in numbers] == kfuncs
    assert [int(number) for _, number in numbers] == list(range(1000001, 1000001 + len(kfuncs)))


def test_builtin_sources_begin_with_the_maps() -> None:
    names = [source.name for source in builtin_sources()]
    assert names[0] == "maps.c"
    assert names[1:] == sorted(names[1:])


PROGRAM = ProgramSpec(bytes(80), lines=(Line(0, "deny.c", 3), Line(2, "deny.c", 5)))


def test_explain_finds_reason_and_line() -> None:
    log = (
        "0: R1=ctx() R10=fp0\n"
        "0: (79) r6 = *(u64 *)(r1 +0)\n"
        "func 'lookup' arg0 has btf_id 130 type STRUCT 'efuse_req'\n"
        "1: R6_w=trusted_ptr_efuse_req()\n"
        "2: (bf) r1 = r6\n"
        "3: (85) call efuse_reply_attrs#131000\n"
        "calling kernel function efuse_reply_attrs is not allowed\n"
        "processed 4 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0\n"
    )
    assert explain(log, PROGRAM) == (
        "calling kernel function efuse_reply_attrs is not allowed",
        Line(2, "deny.c", 5),
    )


def test_explain_finds_a_reason_that_begins_with_a_register() -> None:
    log = (
        "2: (79) r1 = *(u64 *)(r6 +0)\n"
        "func 'sent' arg0 has btf_id 50929 type STRUCT 'fuse_req'\n"
        "3: R1_w=trusted_ptr_or_null_fuse_req(id=1) R6_w=ctx()\n"
        "3: (0f) r3 += r1\n"
        "R3 pointer arithmetic on trusted_ptr_or_null_ prohibited, null-check it first\n"
        "processed 4 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0\n"
    )
    why, where = explain(log, PROGRAM)
    assert why == "R3 pointer arithmetic on trusted_ptr_or_null_ prohibited, null-check it first"
    assert where == PROGRAM.line_of(3)


REPORT = (
    "\nVerification failed: Policy: Operation is not allowed\n"
    "\nReason:\n  The kfunc efuse_reply_flush is not allowed: this program cannot call the kfunc.\n"
    "\nAt:\n  insn 0\n       | ^-- error: policy check failed for kfunc efuse_reply_flush\n"
    "\nSuggestion:\n  Use a kfunc allowed for this program type and attach point.\n"
    "\nprocessed 4 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0\n"
)


def test_explain_prefers_the_reason_before_a_report() -> None:
    trace = "3: (85) call efuse_reply_flush#128315\n"
    why = "calling kernel function efuse_reply_flush is not allowed"
    assert explain(f"{trace}{why}\n{REPORT}", PROGRAM) == (why, Line(2, "deny.c", 5))


def test_explain_finds_a_reason_that_only_the_report_has() -> None:
    why, where = explain("3: (85) call efuse_reply_flush#128315\n" + REPORT, PROGRAM)
    assert why == "The kfunc efuse_reply_flush is not allowed: this program cannot call the kfunc."
    assert where == PROGRAM.line_of(3)


def test_explain_of_an_empty_log_is_empty() -> None:
    assert explain("", PROGRAM) == ("", None)
