# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run BCC in a separate process and make a spec of its output.

BCC creates the maps of a text while it compiles, so it needs root.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from efuse import locations
from efuse.bpf.members import Interface
from efuse.bpf.spec import (
    INSTRUCTION_BYTES,
    MAP_RINGBUF,
    Line,
    MapSpec,
    ProgramSpec,
    Reference,
    Source,
    Spec,
)
from efuse.errors import CompileError, NotSupportedError

__all__ = ["run"]

_PYTHON = "/usr/bin/python3"
_TIMEOUT_S = 300
_MAIN = "/virtual/main.c"
# First and last line of the text as BCC rewrites it.
_REWRITTEN_HEAD = "#if defined(BPF_LICENSE)"
_REWRITTEN_TAIL = "#include <bcc/footer.h>"
_BLOCK = re.MULTILINE | re.DOTALL

_STRUCTURE = re.compile(r"^(FIELD|EITHER|BIT|SIZE)\(\s*\w+,\s*(\d+),([^()]+)\)", re.M)
_STRUCTURE_HIGH, _STRUCTURE_LOW = 0x7EF5EF1E, 0x1D000000  # from KERNEL_NUMBER() in tracing.bpf.h

_LD_IMM64, _CALL = 0x18, 0x85
_PSEUDO_MAP_FD = 1
_FIRST_KFUNC = 1000001
_MAP_NAME_MAX = 15


def run(
    sources: Sequence[Source], interface: Interface, include: Sequence[Path], digest: str
) -> Spec:
    """Compile *sources* as one text; see `efuse.bpf.compile.compile_text`.

    :param interface: the interface that the text implements.
    :param include: include directories.
    :param digest: ``source_hash`` of the resulting spec.
    :raises CompileError: the text does not compile.
    :raises NotSupportedError: BCC is not installed.
    """
    text = "".join(source.text.rstrip("\n") + "\n" for source in sources)
    result, messages = _run_bcc(text, sources, include)
    disassembly = _lines_by_function(messages)
    original = _original_lines(text, messages)
    kfuncs = _kfunc_names(interface)
    structures = _structures(text)
    maps = {m["name"]: _map(m) for m in result["maps"]}
    for name in maps:
        if len(name) > _MAP_NAME_MAX:
            raise CompileError(
                f"the name of map {name!r} is too long: the kernel allows {_MAP_NAME_MAX}"
                " characters"
            )
    by_fd = {m["fd"]: m["name"] for m in result["maps"]}
    programs = {}
    for name, code in result["functions"].items():
        if interface.members and name not in interface.members + interface.constants:
            raise CompileError(
                f"{sources[0].name}: {name}() is not a member of struct {interface.struct}",
                hint="make helper functions static inline; members: " + " ".join(interface.members),
            )
        lines = tuple(
            Line(index, *_locate(sources, original[number]))
            for index, number in disassembly.get(name, ())
            if number in original
        )
        code, references = _symbolic(bytes.fromhex(code), by_fd, kfuncs, structures, name)
        programs[name] = ProgramSpec(code, references, lines)
    if not programs:
        raise CompileError(
            f"{sources[0].name} defines no handler",
            hint=f"define a function named after its member: {interface.example}",
        )
    return Spec(programs, maps, digest)


def _run_bcc(
    text: str, sources: Sequence[Source], include: Sequence[Path]
) -> tuple[dict[str, Any], str]:
    programs = locations.data("bpf_programs")
    multiarch = f"/usr/include/{os.uname().machine}-linux-gnu"
    cflags = ["-Wno-ignored-attributes", "-Wno-unused-variable", "-Wno-macro-redefined"]
    cflags += ["-fno-builtin-exit"]  # exit() is a member here; clang's builtin does not return
    cflags += [f"-I{directory}" for directory in include]
    cflags += ["-isystem", multiarch, "-isystem", "/usr/include"]
    with tempfile.NamedTemporaryFile("r", suffix=".json") as out:
        try:
            child = subprocess.run(
                [_PYTHON, "-I", str(Path(__file__).with_name("_bcc_child.py")), out.name],
                input=json.dumps({"text": text, "cflags": cflags}),
                env={**os.environ, "BCC_KERNEL_SOURCE": str(programs / "kernel")},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError as error:
            raise _no_bcc(f"{_PYTHON} is missing") from error
        except subprocess.TimeoutExpired as error:
            raise CompileError(
                f"cannot compile {sources[0].name}: BCC did not end within {_TIMEOUT_S} s"
            ) from error
        messages = child.stdout + child.stderr
        if child.returncode == 0:
            return json.loads(out.read()), messages
    if child.returncode == 3:
        raise _no_bcc(child.stderr.strip())
    raise _refused(messages, sources)


def _no_bcc(why: str) -> NotSupportedError:
    return NotSupportedError(
        f"cannot compile handlers: BCC is not installed ({why})",
        hint="apt-get install python3-bpfcc",
    )


def _refused(messages: str, sources: Sequence[Source]) -> CompileError:
    """Return the error for clang's output, with the names and lines of the source files."""

    def rename(match: re.Match[str]) -> str:
        name, number = _locate(sources, int(match[1]))
        return f"{name}:{number}"

    log = re.sub(r"^(?:Running from kernel|clang -cc1) .*\n", "", messages, flags=re.MULTILINE)
    log = re.sub(rf"{re.escape(_MAIN)}:(\d+)", rename, log)
    error = re.search(r"^(\S+:\d+):\d+: (?:fatal )?error: (.*)$", log, re.MULTILINE)
    if error:
        return CompileError(f"{error[1]}: {error[2]}", log=log)
    last = log.strip().splitlines()[-1] if log.strip() else "BCC gave no reason"
    hint = None
    if os.geteuid() != 0:
        hint = "compile as root: BCC creates the maps of the text while it compiles"
    return CompileError(f"cannot compile {sources[0].name}: {last}", hint=hint, log=log)


def _locate(sources: Sequence[Source], number: int) -> tuple[str, int]:
    """Return the file, and the line in it, of line *number* of the joined text."""
    first = 1
    for source in sources:
        count = source.text.rstrip("\n").count("\n") + 1
        if number < first + count:
            return source.name, number - first + 1
        first += count
    return sources[-1].name, number


def _lines_by_function(messages: str) -> dict[str, list[tuple[int, int]]]:
    """Parse BCC's disassembly. Return (instruction index, line of the text) by function."""
    found: dict[str, list[tuple[int, int]]] = {}
    current: list[tuple[int, int]] = []
    pending = 0
    for line in messages.splitlines():
        if match := re.match(r"Disassembly of function (\w+)$", line):
            current = found.setdefault(match[1], [])
            pending = 0
        elif match := re.match(r"; .* // Line +(\d+)$", line):
            pending = int(match[1])
        elif pending and (match := re.match(r" *(\d+):\t", line)):
            current.append((int(match[1]), pending))
            pending = 0
    return found


def _original_lines(text: str, messages: str) -> dict[int, int]:
    """Return the line of *text* that each line of BCC's rewritten text comes from.

    BCC adds lines in front of the text, inserts attributes, and rewrites lines that use maps.
    """
    match = re.search(rf"^{re.escape(_REWRITTEN_HEAD)}$.*?^{_REWRITTEN_TAIL}$", messages, _BLOCK)
    if not match:
        return {}
    rewritten = match[0].splitlines()[:-1]
    own = text.splitlines()
    found = {}
    matcher = difflib.SequenceMatcher(None, rewritten, own, autojunk=False)
    for tag, first, last, own_first, own_last in matcher.get_opcodes():
        if tag in ("equal", "replace"):
            # BCC inserts text in front of the line that it belongs to, so align the ends.
            for back in range(1, min(last - first, own_last - own_first) + 1):
                found[last - back + 1] = own_last - back + 1
    return found


def _map(m: dict[str, Any]) -> MapSpec:
    # BCC reports key and value sizes for a ring buffer, but the kernel requires 0.
    key_bytes, value_bytes = m["key_bytes"], m["value_bytes"]
    if m["type"] == MAP_RINGBUF:
        key_bytes = value_bytes = 0
    return MapSpec(m["type"], key_bytes, value_bytes, m["max_entries"], m["flags"])


def _kfunc_names(interface: Interface) -> dict[int, str]:
    header = locations.data(interface.data) / interface.include / interface.header
    found = re.findall(r"\(\*(\w+)\)\([^;]*?_KFUNC\((\d+)\)", header.read_text())
    return {int(number): name for name, number in found}


def _structures(text: str) -> dict[int, tuple[str, str]]:
    """Return, by number, the (kind, name) that the text uses of the kernel's structures."""
    found: dict[int, tuple[str, str]] = {}
    for kind, number, rest in _STRUCTURE.findall(text):
        if int(number) in found:
            raise CompileError(f"{kind}({number}) uses the number of another member")
        words = [word.strip() for word in rest.split(",")]
        pairs = [".".join(words[at : at + 2]) for at in range(0, len(words), 2)]
        found[int(number)] = "field" if kind == "EITHER" else kind.lower(), "|".join(pairs)
    return found


def _symbolic(
    code: bytes,
    maps: dict[int, str],
    kfuncs: dict[int, str],
    structures: dict[int, tuple[str, str]],
    function: str,
) -> tuple[bytes, tuple[Reference, ...]]:
    """Replace the numbers that were valid only in the compiling process by references."""
    out = bytearray(code)
    references = []
    for index in range(len(code) // INSTRUCTION_BYTES):
        at = index * INSTRUCTION_BYTES
        opcode, registers, _offset, immediate = struct.unpack_from("<BBhi", code, at)
        source = registers >> 4
        if opcode == _LD_IMM64 and source == _PSEUDO_MAP_FD:
            references.append(Reference(index, "map", maps[immediate]))
        elif opcode == _LD_IMM64 and (wanted := _structure_number(code, at)) is not None:
            if wanted not in structures:
                raise CompileError(f"{function}() uses KERNEL_NUMBER({wanted}), which has no name")
            references.append(Reference(index, *structures[wanted]))
            struct.pack_into("<i", out, at + 12, 0)
        elif opcode == _CALL and source == 0 and immediate >= _FIRST_KFUNC:
            if immediate not in kfuncs:
                raise CompileError(f"{function}() calls kfunc {immediate}, which has no name")
            references.append(Reference(index, "kfunc", kfuncs[immediate]))
        elif opcode == _CALL and source != 0:
            raise CompileError(
                f"{function}() calls a function that is not inlined",
                hint="make helper functions static inline",
            )
        else:
            continue
        struct.pack_into("<i", out, at + 4, 0)
    return bytes(out), tuple(references)


def _structure_number(code: bytes, at: int) -> int | None:
    """Return the KERNEL_NUMBER() that a 64-bit load at byte *at* loads, or None."""
    low, high = struct.unpack_from("<I4xI", code, at + 4)
    if high == _STRUCTURE_HIGH and low >> 24 == _STRUCTURE_LOW >> 24:
        return int(low - _STRUCTURE_LOW)
    return None
