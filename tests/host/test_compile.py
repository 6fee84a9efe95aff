# SPDX-License-Identifier: LGPL-2.1-or-later
"""BCC on this machine: compile texts into specs, and report errors of texts that do not compile.

This needs root, because BCC creates the maps of a text when it compiles. It needs no module.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from efuse import locations
from efuse.bpf import compile_handlers
from efuse.bpf.compile import builtin, compile_text
from efuse.bpf.members import MEMBERS
from efuse.bpf.spec import MapSpec
from efuse.errors import CompileError, UsageError

EXAMPLES = locations.data("bpf_programs") / "examples"

TEXT = """// The first line.
#include "efuse.bpf.h"
BPF_HASH(denied, u32, u64, 1024);

static inline int is_denied(u32 uid)
{
	return denied.lookup(&uid) != 0;
}

int lookup(struct efuse_req *req)
{
	u32 uid = efuse_req_uid(req);

	if (is_denied(uid))
		return -EACCES;
	return 0;
}
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_builtin_has_its_members_and_maps() -> None:
    spec = builtin(use_shipped=False)
    assert set(spec.programs) == {
        "lookup", "getattr", "access", "readlink", "getxattr", "listxattr", "open", "opendir",
        "flush", "statfs", "learn", "block", "select_path", "path_done", "written", "reply",
        "notify",
    }  # fmt: skip
    assert spec.maps == {
        "entries": MapSpec(9, 264, 48, 65536),
        "attrs": MapSpec(9, 8, 120, 65536),
        "blobs": MapSpec(9, 272, 1024, 8192),
        "grants": MapSpec(9, 24, 40, 16384),
        "volumes": MapSpec(9, 8, 112, 64),
        "tags": MapSpec(2, 4, 512, 512, 1024),
        "blocks": MapSpec(2, 4, 4096, 4096, 1024),
        "geometry": MapSpec(2, 4, 16, 1),
        "files": MapSpec(9, 8, 16, 4096),
        "profiles": MapSpec(6, 4, 80, 384),
        "ghosts": MapSpec(2, 4, 4, 16384),
        "events": MapSpec(27, 0, 0, 1 << 18),
        "listening": MapSpec(2, 4, 4, 1),
        "lost": MapSpec(2, 4, 8, 1),
    }


def test_compiling_twice_gives_equal_specs() -> None:
    assert builtin(use_shipped=False) == builtin(use_shipped=False)


def test_cached_spec_is_found_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = compile_text(TEXT, "deny.c")
    monkeypatch.setattr("efuse.bpf.bcc._PYTHON", "/nowhere/python3")
    assert compile_text(TEXT, "deny.c") == spec
    again = compile_text(TEXT, "other.c").programs["lookup"]
    assert {line.file for line in again.lines} == {"other.c"}


def test_line_numbers_are_those_of_the_text() -> None:
    program = compile_text(TEXT, "deny.c").programs["lookup"]
    own = TEXT.splitlines()
    lines = {own[line.number - 1].strip() for line in program.lines}
    assert "u32 uid = efuse_req_uid(req);" in lines
    assert "return denied.lookup(&uid) != 0;" in lines
    assert {line.file for line in program.lines} == {"deny.c"}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.c")))
def test_examples_compile(name: str) -> None:
    assert compile_text((EXAMPLES / name).read_text(), name).programs


def test_every_member_can_be_implemented() -> None:
    text = '#include "efuse.bpf.h"\n' + "".join(
        f"int {member}(void *argument)\n{{\n\treturn 0;\n}}\n" for member in MEMBERS
    )
    spec = compile_text(text, "all.c")
    assert tuple(m for m in MEMBERS if m in spec.programs) == MEMBERS
    assert all(program.code for program in spec.programs.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("return 0;", "retrun 0;"), "deny.c:16: use of undeclared identifier 'retrun'"),
        (("return -EACCES;", "return -EACCES"), "deny.c:15: expected ';'"),
        (("int lookup", "int lokup"), "lokup\\(\\) is not a member"),
        (("(denied,", "(much_too_long_a_name,"), "deny.c:"),
    ],
)
def test_text_that_does_not_compile_fails(change: tuple[str, str], message: str) -> None:
    with pytest.raises(CompileError, match=message) as caught:
        compile_text(TEXT.replace(*change), "deny.c")
    assert "\n" not in str(caught.value)
    assert "/virtual/" not in caught.value.log


def test_text_without_a_handler_fails() -> None:
    with pytest.raises(CompileError, match="defines no handler"):
        compile_text("int number;\n", "deny.c")


def test_helper_that_is_not_inline_fails() -> None:
    with pytest.raises(CompileError):
        compile_text(TEXT.replace("static inline int", "int"), "deny.c")


def test_own_handler_runs_before_the_builtin_one() -> None:
    spec = compile_handlers({"lookup": TEXT})
    plain = compile_handlers()
    assert len(spec.programs["lookup"].code) > len(plain.programs["lookup"].code)
    assert spec.programs["getattr"] == plain.programs["getattr"]
    assert set(spec.maps) == {*plain.maps, "denied"}


@pytest.mark.parametrize("member", ["lokup", "name", "connection"])
def test_handler_of_an_unknown_member_fails(member: str) -> None:
    with pytest.raises(UsageError, match=member):
        compile_handlers({member: TEXT})


def test_handler_that_the_text_does_not_define_fails() -> None:
    with pytest.raises(UsageError, match="defines no function open"):
        compile_handlers({"open": TEXT})
