# SPDX-License-Identifier: LGPL-2.1-or-later
"""Join several compiled texts into one program set.

A function that BCC compiled expects the member's first argument in register 1, but the kernel
passes a pointer to the array of arguments. A load in front of the function fetches the argument
from there. If a member has both a custom and a built-in handler, they become subprograms, called in
turn.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from efuse.bpf.compile import builtin, compile_text
from efuse.bpf.members import MEMBERS, REPLY
from efuse.bpf.spec import INSTRUCTION_BYTES, Line, MapSpec, ProgramSpec, Reference, Spec
from efuse.errors import UsageError

__all__ = ["Handlers", "compile_handlers", "compose", "entry"]

Handlers = Mapping[str, str]
"""C text by the member of ``struct efuse_ops`` that it implements."""

_R0, _R1, _R6 = 0, 1, 6
_PSEUDO_CALL = 1


def compile_handlers(
    handlers: Handlers | None = None,
    *,
    with_builtin: bool = True,
    without: Collection[str] = (),
    names: Mapping[str, str] | None = None,
) -> Spec:
    """Return the composed program set. Compile the texts that are not cached.

    :param handlers: custom handlers. If several members have the same text, they share its maps.
    :param with_builtin: False to leave out the built-in handlers.
    :param without: members of the built-in set to leave out.
    :param names: name of each member's text in error messages; by default ``<member> handler``.
    :raises UsageError: a member does not exist, or its text does not define it.
    :raises CompileError: a text does not compile.
    """
    names = names or {}
    texts: dict[str, list[str]] = {}
    for member, text in (handlers or {}).items():
        if member not in MEMBERS:
            raise UsageError(
                f"cannot attach a handler for {member!r}: struct efuse_ops has no such member",
                hint="one of " + " ".join(MEMBERS),
            )
        texts.setdefault(text, []).append(member)
    own = []
    for text, members in texts.items():
        name = names.get(members[0], f"{members[0]} handler")
        spec = compile_text(text, name)
        for member in members:
            if member not in spec.programs:
                raise UsageError(
                    f"cannot use {name} for {member}: it defines no function {member}()",
                    hint=f"define int {member}(struct efuse_req *req); it defines "
                    + ", ".join(f"{defined}()" for defined in spec.programs),
                )
        programs = {member: spec.programs[member] for member in members}
        own.append(replace(spec, programs=programs))
    if with_builtin and not own:
        return _builtin_less(frozenset(without))
    return compose(_less(builtin(), without) if with_builtin else None, own)


@functools.lru_cache(maxsize=16)  # a process that mounts often composes them once
def _builtin_less(without: frozenset[str]) -> Spec:
    return compose(_less(builtin(), without))


def _less(base: Spec, without: Collection[str]) -> Spec:
    programs = {member: p for member, p in base.programs.items() if member not in without}
    return replace(base, programs=programs)


def compose(base: Spec | None, own: Iterable[Spec] = ()) -> Spec:
    """Return one set of loadable programs.

    For a member that both *own* and *base* have, the program of *own* runs first, and the program
    of *base* runs only if the first verdict is 0. A map of *own* is renamed to
    ``<first member of its text>__<name>`` if another map has the same name.

    :param base: the built-in handlers, compiled, or None.
    :param own: custom texts, compiled; no two may implement the same member.
    :raises UsageError: two texts implement the same member.
    """
    own = tuple(own)
    maps: dict[str, MapSpec] = dict(base.maps) if base else {}
    first: dict[str, ProgramSpec] = {}
    wanted = [name for spec in own for name in spec.maps]
    for spec in own:
        label = min(spec.programs)
        renamed = {
            name: f"{label}__{name}" if name in maps or wanted.count(name) > 1 else name
            for name in spec.maps
        }
        maps |= {renamed[name]: definition for name, definition in spec.maps.items()}
        for member, program in spec.programs.items():
            if member in first:
                raise UsageError(f"two texts are given for the handler of {member}")
            first[member] = replace(
                program,
                references=tuple(
                    replace(r, name=renamed[r.name]) if r.kind == "map" else r
                    for r in program.references
                ),
            )
    programs = {}
    for member in MEMBERS:
        parts = [part[member] for part in (first, base.programs if base else {}) if member in part]
        if parts:
            programs[member] = entry(member, parts)
    hashes = [spec.source_hash for spec in ((base,) if base else ()) + own]
    digest = hashlib.sha256(" ".join(hashes).encode()).hexdigest()
    return Spec(programs, maps, digest)


def entry(member: str, parts: list[ProgramSpec]) -> ProgramSpec:
    """Return the program that the kernel calls for *member*, made from one or two functions."""
    has_context = member == REPLY
    if len(parts) == 1:
        return _join([parts[0]] if has_context else [_code(_load(_R1, _R1)), parts[0]])
    argument = _move(_R6, _R1) if has_context else _load(_R6, _R1)
    # The head has 7 instructions. A call's target counts from the instruction after the call.
    second = 7 + len(parts[0].code) // INSTRUCTION_BYTES
    head = _code(
        argument,
        _move(_R1, _R6),
        _call(7 - 3),
        _exit_unless_zero(2),
        _move(_R1, _R6),
        _call(second - 6),
        _exit(),
    )
    return _join([head, *parts])


@dataclass
class _Joined:
    code: bytes = b""
    references: tuple[Reference, ...] = ()
    lines: tuple[Line, ...] = ()


def _join(parts: Iterable[ProgramSpec]) -> ProgramSpec:
    joined = _Joined()
    for part in parts:
        offset = len(joined.code) // INSTRUCTION_BYTES
        joined.code += part.code
        joined.references += tuple(
            Reference(r.index + offset, r.kind, r.name) for r in part.references
        )
        joined.lines += tuple(
            Line(line.index + offset, line.file, line.number) for line in part.lines
        )
    return ProgramSpec(joined.code, joined.references, joined.lines)


def _code(*instructions: bytes) -> ProgramSpec:
    return ProgramSpec(b"".join(instructions))


def _instruction(
    opcode: int, *, to: int = 0, by: int = 0, offset: int = 0, value: int = 0
) -> bytes:
    return struct.pack("<BBhi", opcode, to | by << 4, offset, value)


def _load(to: int, by: int) -> bytes:
    """``to = *(u64 *)(by + 0)``"""
    return _instruction(0x79, to=to, by=by)


def _move(to: int, by: int) -> bytes:
    return _instruction(0xBF, to=to, by=by)


def _call(distance: int) -> bytes:
    """Call the subprogram *distance* instructions after the next instruction."""
    return _instruction(0x85, by=_PSEUDO_CALL, value=distance)


def _exit_unless_zero(distance: int) -> bytes:
    """``if w0 != 0 goto`` the exit *distance* instructions after the next instruction."""
    return _instruction(0x56, to=_R0, offset=distance)


def _exit() -> bytes:
    return _instruction(0x95)
