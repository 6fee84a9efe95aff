# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests as the kernel records them: their names, filters, and lines."""

from __future__ import annotations

import re
import struct
from dataclasses import replace

import pytest

from efuse import locations, opcodes
from efuse.tracing import ANSWERED_BY, REASONS, Filter, Names, Request, as_json, header, line
from tests.documents import named
from tests.unit.recorded_requests import entry, raw, request

NOON_NS = 1_700_000_000_123_456_789


def test_record_layout_equals_that_of_the_tracing_program() -> None:
    text = (locations.data("bpf_programs") / "tracing" / "trace.c").read_text()
    fields = re.search(r"struct request \{\n(.*?)\n\};", text, re.DOTALL)
    assert fields
    kinds = {"u64": "Q", "s64": "q", "u32": "I", "u8": "B", "u16": "H", "char": "B"}
    sizes = {"name_len[2]": 2, "comm[16]": 16, "in[IN_BYTES]": 64, "out[OUT_BYTES]": 128}
    layout = "="
    for kind, name in re.findall(r"\t(\w+) (.+);", fields[1]):
        if name != "names[512]":
            layout += f"{sizes.get(name, 1)}{kinds[kind]}"
    assert struct.calcsize(layout) == len(raw("getattr"))


def test_paths_and_reasons_equal_those_of_the_kernel() -> None:
    sources = locations.data("kernel_patches")
    uapi = (sources / "include/uapi/linux/efuse.h").read_text()
    header_text = (sources / "src/core/core_i.h").read_text()
    numbers = {int(n): name.lower() for name, n in re.findall(r"EFUSE_PATH_(\w+)\t+= (\d)", uapi)}
    by = re.search(r"enum efuse_answered_by \{(.*?)\}", header_text, re.DOTALL)
    assert by
    for number, name in enumerate(re.findall(r"EFUSE_ANSWERED_BY_(\w+)", by[1]), len(numbers)):
        numbers[number] = name.lower()
    assert numbers.pop(0) == "auto"
    assert dict(ANSWERED_BY) == numbers
    counters = re.search(r"enum efuse_counter \{(.*?)\}", header_text, re.DOTALL)
    assert counters
    names = re.findall(r"^\tEFUSE_(\w+),", counters[1], re.MULTILINE)
    first, last = names.index("MISS"), names.index("FAILED")
    assert dict(REASONS) == {n: names[n].lower() for n in range(first, last + 1)}


def test_record_is_decoded() -> None:
    found = request(
        "rename", 5, b"old", b"new", arguments=struct.pack("=Q", 9), answered_by=1, reason=10
    )
    assert found == Request(
        time_ns=5_000,
        ns=1_200_000,
        connection=40,
        opcode="rename",
        nodeid=5,
        names=(b"old", b"new"),
        pid=77,
        thread=78,
        uid=1000,
        comm="cat",
        answered_by="daemon",
        reason="no_handler",
        arguments=struct.pack("=Q", 9),
    )
    assert found.other == 9


def test_flags_of_a_record_are_decoded() -> None:
    found = request("read", 5, flags=1 | 2 | 4, digest=99, ns=0, answered_by=3, ret=100)
    assert (found.reason, found.background, found.digest, found.ns) == ("partial", True, 99, None)
    assert (found.answered_by, found.ret, found.error) == ("cache", 100, "")


@pytest.mark.parametrize("cut", [0, 100, 279, 281])
def test_truncated_record_fails(cut: int) -> None:
    with pytest.raises(ValueError, match=r"a request has|cut off"):
        Request.decode(raw("lookup", 1, b"name")[:cut])


def test_read_has_its_offset_and_size() -> None:
    found = request("read", 5, arguments=struct.pack("=QQIIQII", 3, 8192, 4096, 0, 0, 0, 0))
    assert (found.offset, found.size, found.other) == (8192, 4096, None)
    assert request("read", 5, arguments=bytes(8)).offset is None


@pytest.mark.parametrize("opcode", ["copy_file_range", "copy_file_range_64"])
def test_copy_has_its_offset_size_and_other_inode(opcode: str) -> None:
    found = request(opcode, 5, arguments=struct.pack("=QQQQQQQ", 3, 8192, 9, 4, 0, 4096, 0))
    assert (found.offset, found.size, found.other) == (8192, 4096, 9)


@pytest.mark.parametrize(
    ("found", "error", "child"),
    [
        (request("lookup", 1, b"n", answer=entry(7)), "", 7),
        (request("lookup", 1, b"n", answer=entry(0)), "ENOENT", None),
        (request("lookup", 1, b"n", ret=-2, answer=entry(7)), "ENOENT", None),
        (request("getattr", 1, answer=entry(7)), "", None),
        (request("getattr", 1, ret=-5), "EIO", None),
        (request("getattr", 1, ret=-9999), "errno 9999", None),
    ],
)
def test_errno_and_child_of_a_reply_are_decoded(
    found: Request, error: str, child: int | None
) -> None:
    assert (found.error, found.child) == (error, child)


def learned(*requests: Request) -> Names:
    names = Names()
    for each in requests:
        names.learn(each)
    return names


def test_names_are_learned_from_answers() -> None:
    names = learned(
        request("lookup", 1, b"d", answer=entry(2)),
        request("create", 2, b"f", answer=entry(3)),
        request("lookup", 9, b"far", answer=entry(10)),
    )
    assert [names.path(n) for n in (1, 2, 3, 10, 9, 4)] == ["/", "/d", "/d/f", "…/far", "", ""]
    assert names.child(2, b"f") == 3


def test_names_follow_a_rename() -> None:
    made = [
        request("mkdir", 1, b"d", answer=entry(2)),
        request("mknod", 1, b"f", answer=entry(3)),
    ]
    move = request("rename2", 1, b"f", b"g", arguments=struct.pack("=QII", 2, 0, 0))
    names = learned(*made, move)
    assert (names.path(3), names.child(1, b"f"), names.child(2, b"g")) == ("/d/g", None, 3)
    failed = learned(*made, replace(move, ret=-17))
    assert (failed.path(3), failed.child(1, b"f")) == ("/f", 3)


def test_path_in_a_cycle_of_names_is_bounded() -> None:
    names = learned(
        request("lookup", 3, b"a", answer=entry(2)), request("lookup", 2, b"b", answer=entry(3))
    )
    assert names.path(2).count("/") <= 65


def test_name_is_forgotten_after_an_unlink_or_a_negative_lookup() -> None:
    made = request("lookup", 1, b"f", answer=entry(3))
    assert learned(made, request("unlink", 1, b"f")).child(1, b"f") is None
    assert learned(made, request("lookup", 1, b"f", answer=entry(0))).child(1, b"f") is None


def test_shown_names_of_a_request_depend_on_its_opcode() -> None:
    names = learned(request("lookup", 1, b"f", answer=entry(3)))
    assert names.shown(request("lookup", 3, b"x")) == "x"
    assert names.shown(request("rename", 1, b"x", b"y")) == "x -> y"
    assert names.shown(request("read", 3)) == "/f"
    assert names.shown(request("getxattr", 3, b"user.a")) == "/f user.a"
    assert names.shown(request("getxattr", 4, b"user.a")) == "user.a"


ONE = request("lookup", 5, b"main.c", answered_by=5, ns=2_000_000, ret=-2)


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        (Filter(), True),
        (Filter(opcodes=frozenset({"lookup", "read"})), True),
        (Filter(opcodes=frozenset({"read"})), False),
        (Filter(nodeids=frozenset({5})), True),
        (Filter(nodeids=frozenset({6})), False),
        (Filter(answered_by=frozenset({"handler"})), True),
        (Filter(answered_by=frozenset({"daemon"})), False),
        (Filter(pids=frozenset({77})), True),
        (Filter(pids=frozenset({78})), True),
        (Filter(pids=frozenset({79})), False),
        (Filter(slower_than_ns=1_999_999), True),
        (Filter(slower_than_ns=2_000_000), False),
        (Filter(errors=True), True),
        (Filter(name="*.c"), True),
        (Filter(name="*.h"), False),
        (Filter(name="main.c", nodeids=frozenset({6})), False),
    ],
)
def test_filter_keeps_the_matching_requests(chosen: Filter, wanted: bool) -> None:
    assert chosen.wants(ONE, "main.c") == wanted


def test_filter_by_name_error_or_duration_drops_other_requests() -> None:
    assert Filter(name="*.c").wants(ONE, "/src/main.c")
    assert Filter(name="/src/*").wants(ONE, "/src/main.c")
    assert not Filter(name="src").wants(ONE, "/src/main.c")
    assert not Filter(errors=True).wants(request("read", 5), "")
    assert not Filter(slower_than_ns=0).wants(request("read", 5, ns=0), "")


def test_lines_fit_their_titles() -> None:
    for width in (None, 80, 120):
        title = header(width)
        text = line(ONE, "main.c", wall_ns=0, width=width)
        assert text.index("main.c") == title.index("NAME")
        assert text.index("handler") == title.index("BY")
        assert text[title.index("OPCODE") :].startswith("lookup")
        assert ("cat" in text) == ("COMM" in title) == (width != 80)


def test_line_shows_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    text = line(replace(ONE, time_ns=0), "main.c", wall_ns=NOON_NS, width=80)
    assert text[2:] == (
        ":13:20     77 lookup          5 handler -           2.0 ms main.c = ENOENT"
    )
    wide = line(replace(ONE, time_ns=0), "main.c", wall_ns=NOON_NS)
    assert wide[2:].startswith(":13:20.123     77 cat             lookup ")


def test_documented_lines_fit_the_columns() -> None:
    (block,) = named("test", "tests/unit/test_tracing.py::test_documented_lines_fit_the_columns")
    command, titles, *lines = block.text.splitlines()
    assert command == "# efuse trace /mnt/data"
    assert titles == header(80)
    at = {title: titles.index(title) for title in titles.split()}
    for text in lines:
        assert len(text) <= 80
        assert text[at["OPCODE"] :].split()[0] in opcodes.COUNTED
        assert text[at["BY"] : at["WHY"]].strip() in ANSWERED_BY.values()
        assert text[at["WHY"] : at["LATENCY"]].strip() in {*REASONS.values(), "partial", "-"}
        assert text[at["NAME"] :].strip()


def test_line_is_cut_to_the_terminal() -> None:
    long = request("read", 12345678901, reason=5)
    text = line(long, "/" + "directory/" * 9 + "file", wall_ns=0, width=80)
    assert text.endswith("/file")
    assert "…" in text
    assert len(text) == 80
    assert line(replace(ONE, ret=-39), "a-name-that-is-long", wall_ns=0, width=80).endswith(
        "…s-long = ENOTEMPTY"
    )
    assert line(long, "/short", wall_ns=0, width=20).endswith("…ort")
    assert line(long, "x" * 200, wall_ns=0).endswith("x" * 200)


def test_line_escapes_control_characters() -> None:
    text = line(ONE, "a\x1b[2Jb\n\udcff", wall_ns=0)
    assert "a\\x1b[2Jb\\n\\xff = ENOENT" in text


def test_json_has_the_fields_of_a_request() -> None:
    found = as_json(ONE, "main.c", wall_ns=1)
    assert found["time_ns"] == 5_001
    assert (found["opcode"], found["nodeid"], found["names"]) == ("lookup", 5, ["main.c"])
    assert (found["answered_by"], found["reason"], found["error"]) == ("handler", None, "ENOENT")
    assert (found["latency_ns"], found["ret"], found["pid"]) == (2_000_000, -2, 77)
