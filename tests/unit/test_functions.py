# SPDX-License-Identifier: LGPL-2.1-or-later
"""The Python side of the storage functions: arguments, reference implementations, and refusals."""

from __future__ import annotations

import random
import re
import struct
import subprocess
from pathlib import Path

import pytest

from efuse import locations
from efuse.bpf.members import CSD_FUNCTION
from efuse.cli._csd_functions import COMMANDS
from efuse.errors import EfuseError, UsageError
from efuse.functions import (
    SHIPPED,
    Aggregate,
    Count,
    Counted,
    Crc32c,
    Field,
    Filter,
    Grep,
    Histogram,
    Records,
    Shipped,
    Why,
    run,
    running,
)
from efuse.functions.reference import Streaming


def test_every_shipped_function_has_a_source_file() -> None:
    texts = {path.stem for path in (locations.data("csd") / "functions").glob("*.c")}
    assert set(SHIPPED) == texts


def test_every_shipped_function_has_a_command() -> None:
    assert set(COMMANDS) == set(SHIPPED)
    assert all(COMMANDS[name].function is shipped for name, shipped in SHIPPED.items())


def test_every_reason_has_a_description() -> None:
    assert all(why.description for why in Why)


def test_members_equal_those_of_the_kernels_struct() -> None:
    header = (locations.data("csd") / "src" / "function.h").read_text()
    assert tuple(re.findall(r"\(\*(\w+)\)\(", header)) == CSD_FUNCTION.members
    numbers = re.findall(r"^\tu32 (\w+);", header, re.MULTILINE)
    assert CSD_FUNCTION.constants == tuple(numbers)


def test_declared_kfuncs_equal_those_of_the_kernel() -> None:
    kernel = (locations.data("csd") / "src" / "kfuncs.c").read_text()
    declared = (locations.data("csd") / "functions" / "include" / "csd.bpf.h").read_text()
    names = re.findall(r"BTF_ID_FLAGS\(func, (\w+)", kernel)
    numbers = re.findall(r"\(\*(\w+)\)\([^;]*?CSD_KFUNC\((\d+)\)", declared)
    assert [name for name, _ in numbers] == names
    assert [int(number) for _, number in numbers] == list(range(1001001, 1001001 + len(names)))


def test_reference_count_counts_lines_and_matches() -> None:
    call = Count(b"aa")
    found = call.decode(call.reference(b"aaa\nba\na"))
    assert (found.lines, found.matches, found.size) == (2, 2, 8)
    assert Count().decode(Count().reference(b"\n")).matches == 0
    assert len(call.encode()) == 257 * 8


@pytest.mark.parametrize(
    ("pattern", "data"),
    [
        (b"a", b""),
        (b"a", b"a"),
        (b"a", b"\n\na\n\nba\nb\n"),
        (b"ab", b"abab\na\nb\n ab\n"),
        (b"\xff\0", b"\xff\0\n\r\xff\0\r\n\xff\n\0\n"),
        (b"x" * 64, b"x" * 63 + b"\n" + b"x" * 65 + b"\n"),
    ],
)
def test_reference_grep_equals_gnu_grep(pattern: bytes, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "pattern").write_bytes(pattern)
    found = Grep(pattern).reference(data)
    printed = subprocess.run(
        ["grep", "-aF", "-f", tmp_path / "pattern"],
        input=data,
        capture_output=True,
        env={"LC_ALL": "C"},
        check=False,
    ).stdout
    # GNU grep adds a newline to the last line if it has none.
    assert found + b"\n" * (bool(found) and not found.endswith(b"\n")) == printed
    assert b"\n".join(Grep(pattern).decode(found)) == printed.removesuffix(b"\n")


def test_grep_without_a_match_forgets_the_beginning_of_a_long_line() -> None:
    kept = b"." * (60 << 10) + b"a"
    assert Grep(b"a").reference(kept) == kept
    assert Grep(b"b").reference(b"." + kept + b"\nb") == b"b"
    with pytest.raises(EfuseError, match="EOVERFLOW"):
        Grep(b"a").reference(b"." * 4096 + kept)


def test_reference_crc32c_equals_the_published_check_values() -> None:
    assert Crc32c().decode(Crc32c().reference(b"123456789")) == 0xE3069283
    assert Crc32c().decode(Crc32c().reference(b"")) == 0


@pytest.mark.parametrize(
    "call",
    [
        Count(b"aa"),
        Count(b"a"),
        Count(),
        Crc32c(),
        Grep(b"aa"),
        Grep(b"\xff"),
        Aggregate(Records(8, Filter(Field(0, 1), -50, 90)), Field(0, 2)),
        Aggregate(Records(8, Filter(Field(0, 1), 1, 0)), Field(0, 2)),
        Histogram(Records(16), Field(0, 1), start=-64, width=16, ranges=6),
    ],
)
def test_streamed_output_equals_that_of_the_whole_file(call: Shipped) -> None:
    data = bytes(random.Random(2).choices(b"aab\n\0\xff", k=3 * 4096 + 77))
    assert isinstance(call, Streaming)
    reference = call.stream()
    parts = [reference.step(data[at : at + 4096]) for at in range(0, len(data), 4096)]
    assert b"".join(parts) + reference.finish() == call.reference(data)


def _grep(pattern: bytes, data: bytes) -> bytes | None:
    """Find the lines with a pattern in another way; None: a match is too late in its line."""
    found, at = [], 0
    for line in data.splitlines(keepends=True):  # the data has no \\r
        match = line.find(pattern)
        if match >= 0:
            if (at + match + len(pattern) - 1) // 4096 * 4096 - at > 60 << 10:
                return None
            found.append(line)
        at += len(line)
    return b"".join(found)


@pytest.mark.parametrize("seed", range(300))
def test_streamed_grep_equals_grep_of_the_whole_file(seed: int) -> None:
    """Lines are shorter and longer than what is remembered, and cut at any block."""
    source = random.Random(seed)
    pattern = b"ab" * source.choice((1, 1, 16))
    parts = []
    for _ in range(source.randrange(1, 6)):
        before = source.choice((0, 5, 4095, 4096, 50_000, 61_000, 61_440, 65_536, 90_000))
        parts.append(b"." * max(0, before - source.randrange(5)))
        parts.append(source.choice((pattern, pattern, b"a", b"")))
        parts.append(b"." * source.choice((0, 3, 70_000)))
        parts.append(source.choice((b"\n", b"\n", b"")))
    data = b"".join(parts)
    reference, emitted, size = Grep(pattern).stream(), b"", 4096 * source.randrange(1, 9)
    wanted = _grep(pattern, data)
    if wanted is None:
        with pytest.raises(EfuseError, match="EOVERFLOW"):
            for at in range(0, len(data), size):
                reference.step(data[at : at + size])
        return
    for at in range(0, len(data), size):
        emitted += reference.step(data[at : at + size])
        assert len(reference._line) <= (60 << 10) + 2 * 4096  # type: ignore[attr-defined]
    assert emitted + reference.finish() == wanted == Grep(pattern).reference(data)


def test_count_finds_matches_across_blocks() -> None:
    reference = Count(b"abc").stream()
    for piece in (b"ab", b"c", b"a", b"b", b"cab", b"c"):
        reference.step(piece)
    assert Count().decode(reference.finish()) == Counted(0, 3, 9)


def test_reference_aggregate_equals_python() -> None:
    data = b"".join(struct.pack("<hHi", n, n + 5, -n) for n in range(-3, 4)) + b"left"
    call = Aggregate(Records(8, Filter(Field(0, 2), -2, 3)), Field(4, 4))
    found = call.decode(call.reference(data))
    assert (found.count, found.sum, found.least, found.most) == (6, -3, -3, 2)
    assert found.mean == -0.5
    none = call.decode(call.reference(b""))
    assert (none.count, none.least, none.most, none.mean) == (0, None, None, None)


def test_reference_histogram_equals_python() -> None:
    data = random.Random(1).randbytes(8 * 1000)
    call = Histogram(Records(8), Field(2, 2), start=-1024, width=256, ranges=8)
    found = call.decode(call.reference(data))
    numbers = [n for (n,) in struct.iter_unpack("<2xh4x", data)]
    assert found.below == sum(n < -1024 for n in numbers)
    assert found.above == sum(n >= 1024 for n in numbers)
    assert found.counts[3] == sum(-256 <= n < 0 for n in numbers)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Count(b"x" * 65),
        lambda: Grep(b"x" * 65),
        lambda: Grep(b""),
        lambda: Grep(b"a\n"),
        lambda: Field(0, 3),
        lambda: Field(2, 4),
        lambda: Field(-8, 8),
        lambda: Field(0, 8, signed=False),
        lambda: Records(4),
        lambda: Records(24),
        lambda: Records(8192),
        lambda: Records(8, Filter(Field(8))),
        lambda: Aggregate(Records(8), Field(8)),
        lambda: Histogram(Records(8), Field(0), width=3),
        lambda: Histogram(Records(8), Field(0), ranges=1023),
        lambda: Histogram(Records(8), Field(0), ranges=0),
    ],
)
def test_call_with_invalid_arguments_fails(make: object) -> None:
    assert callable(make)
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize(("file", "why"), [("none", "ENOENT"), ("none/below", "ENOENT")])
def test_run_over_a_file_that_cannot_be_opened_says_why(
    tmp_path: Path, file: str, why: str
) -> None:
    with pytest.raises(EfuseError, match=rf"'count' over {tmp_path / file}: .*{why}") as caught:
        run("count", tmp_path / file)
    assert caught.value.hint


def test_run_without_access_to_the_device_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").touch()
    control = tmp_path / "f" / "csd"  # below a file: ENOTDIR
    monkeypatch.setattr(running, "CONTROL", str(control))
    with pytest.raises(EfuseError, match=rf"{control} cannot be opened: .*ENOTDIR") as caught:
        run("count", tmp_path / "f")
    assert caught.value.hint
