# SPDX-License-Identifier: LGPL-2.1-or-later
"""Specs: round trip, capacities, composing and linking."""

from __future__ import annotations

import struct

import pytest

from efuse.bpf.compose import compose
from efuse.bpf.relocation import relocate
from efuse.bpf.spec import Line, MapSpec, ProgramSpec, Reference, Spec
from efuse.errors import CompileError, UsageError

MOVE_0 = struct.pack("<BBhi", 0xB7, 0, 0, 0)
EXIT = struct.pack("<BBhi", 0x95, 0, 0, 0)
CALL = struct.pack("<BBhi", 0x85, 0, 0, 0)
MAP = struct.pack("<BBhi", 0x18, 1 | 1 << 4, 0, 0) + bytes(8)

HASH = MapSpec(type=1, key_bytes=4, value_bytes=8, max_entries=16)


def spec(member: str = "lookup", map_name: str = "denied", code: bytes = MAP + CALL + EXIT) -> Spec:
    program = ProgramSpec(
        code,
        (Reference(0, "map", map_name), Reference(2, "kfunc", "efuse_req_uid")),
        (Line(0, "deny.c", 4), Line(2, "deny.c", 6)),
    )
    return Spec({member: program}, {map_name: HASH}, source_hash="ab")


def instructions(code: bytes) -> list[tuple[int, int, int, int, int]]:
    """Return (opcode, destination, source, offset, immediate) of each instruction."""
    return [
        (opcode, registers & 15, registers >> 4, offset, immediate)
        for opcode, registers, offset, immediate in struct.iter_unpack("<BBhi", code)
    ]


def test_spec_survives_json() -> None:
    assert Spec.from_json(spec().to_json()) == spec()


def test_spec_differs_by_code() -> None:
    assert spec() != spec(code=MAP + CALL + MOVE_0 + EXIT)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', spec().to_json()[:-9]])
def test_spec_from_damaged_json_fails(text: str) -> None:
    with pytest.raises(CompileError):
        Spec.from_json(text)


def test_spec_of_another_format_fails() -> None:
    text = spec().to_json().replace('"format": 1', '"format": 999')
    with pytest.raises(CompileError, match="format 999"):
        Spec.from_json(text)


def test_with_capacity_changes_one_map() -> None:
    changed = spec().with_capacity({"denied": 7})
    assert changed.maps["denied"].max_entries == 7
    assert spec().maps["denied"].max_entries == 16


@pytest.mark.parametrize("capacity", [{"nothing": 1}, {"denied": 0}, {"denied": 1 << 32}])
def test_with_capacity_out_of_range_fails(capacity: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        spec().with_capacity(capacity)


def test_line_of_instruction_is_the_last_before_it() -> None:
    program = spec().programs["lookup"]
    assert program.line_of(1) == Line(0, "deny.c", 4)
    assert program.line_of(3) == Line(2, "deny.c", 6)


def test_composed_program_of_one_handler_loads_its_argument() -> None:
    program = compose(None, [spec()]).programs["lookup"]
    assert instructions(program.code)[0] == (0x79, 1, 1, 0, 0)
    assert program.code[8:] == MAP + CALL + EXIT
    assert [r.index for r in program.references] == [1, 3]
    assert [line.index for line in program.lines] == [1, 3]


def test_composed_reply_handler_gets_the_whole_context() -> None:
    program = compose(None, [spec("reply")]).programs["reply"]
    assert program.code == MAP + CALL + EXIT


def test_composed_program_calls_the_own_handler_before_the_builtin_one() -> None:
    base = spec("lookup", "entries", MAP + CALL + MOVE_0 + EXIT)
    program = compose(base, [spec()]).programs["lookup"]
    head = instructions(program.code[: 7 * 8])
    assert head[2] == (0x85, 0, 1, 0, 4)  # 2 + 1 + 4: the added handler, behind the head
    assert head[3] == (0x56, 0, 0, 2, 0)  # a verdict of the added handler is final
    assert head[5] == (0x85, 0, 1, 0, 5)  # 5 + 1 + 5: the built-in one, behind the added one
    assert program.code[7 * 8 : 11 * 8] == MAP + CALL + EXIT
    assert program.code[11 * 8 :] == MAP + CALL + MOVE_0 + EXIT
    assert [r.name for r in program.references if r.kind == "map"] == ["denied", "entries"]


def test_maps_of_one_name_in_composed_programs_are_renamed() -> None:
    base = spec("getattr", "attrs")
    own = [spec("lookup", "attrs"), spec("open", "counts"), spec("write", "counts")]
    composed = compose(base, own)
    assert set(composed.maps) == {"attrs", "lookup__attrs", "open__counts", "write__counts"}
    references = composed.programs["lookup"].references
    assert [r.name for r in references if r.kind == "map"] == ["lookup__attrs"]


def test_compose_of_one_member_twice_fails() -> None:
    with pytest.raises(UsageError, match="lookup"):
        compose(None, [spec(), spec(code=MAP + CALL + MOVE_0 + EXIT)])


def test_resolve_puts_numbers_for_names() -> None:
    code = relocate(
        spec().programs["lookup"], kfuncs={"efuse_req_uid": 130001}, map_fds={"denied": 9}
    )
    assert instructions(code) == [
        (0x18, 1, 1, 0, 9),
        (0, 0, 0, 0, 0),
        (0x85, 0, 2, 1, 130001),
        (0x95, 0, 0, 0, 0),
    ]


def test_resolve_puts_offsets_for_fields() -> None:
    program = ProgramSpec(MAP + EXIT, (Reference(0, "field", "fuse_req.in.h.nodeid"),))
    fields = {("field", "fuse_req.in.h.nodeid"): 72, ("size", "fuse_req.in.h.nodeid"): 1}
    code = relocate(program, map_fds={}, structures=fields)
    assert instructions(code) == [(0x18, 1, 0, 0, 72), (0, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)]


def test_resolve_of_unknown_kfunc_fails() -> None:
    with pytest.raises(CompileError, match="efuse_req_uid"):
        relocate(spec().programs["lookup"], kfuncs={}, map_fds={"denied": 9})
