# SPDX-License-Identifier: LGPL-2.1-or-later
"""A program set before it is loaded: C texts, and instructions that refer to the kernel by name.

Pure: no system calls. Specs compare by content.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from efuse.errors import CompileError, UsageError

__all__ = [
    "INSTRUCTION_BYTES",
    "MAP_RINGBUF",
    "WAYS",
    "Line",
    "MapSpec",
    "ProgramSpec",
    "Reference",
    "Source",
    "Spec",
]

INSTRUCTION_BYTES = 8
"""Size of one BPF instruction, in bytes. A 64-bit load takes two instructions."""

WAYS = 8
"""Slots of ``blocks`` per set of ``tags`` (``EFUSE_WAYS``)."""

MAP_RINGBUF = 27
"""Map type of a ring buffer (``BPF_MAP_TYPE_RINGBUF``). Its capacity is in bytes."""

_GHOSTS = 4  # Elements of `ghosts` per slot, as in maps.c.

_FORMAT = 1


@dataclass(frozen=True)
class Source:
    """A C text, and its name in error messages."""

    name: str
    text: str


@dataclass(frozen=True, order=True)
class Reference:
    """An instruction that needs a number known only when the program is loaded.

    :param index: index of the instruction.
    :param kind: ``"map"`` (descriptor of a map), ``"kfunc"`` (BTF id of a function), or, for a
        kernel structure, ``"field"`` (offset of a member in bytes), ``"bit"`` (offset in bits) or
        ``"size"`` (in bytes).
    :param name: name of the map, of the kfunc, or of the structure and its member
        (``fuse_req.in.h.nodeid``). Alternatives are separated by ``|``; the first that the kernel
        has is used.
    """

    index: int
    kind: str
    name: str


@dataclass(frozen=True, order=True)
class Line:
    """The source line of the instructions from *index* on.

    :param index: index of the first instruction.
    :param file: name of the source text.
    :param number: line number, counted from 1.
    """

    index: int
    file: str
    number: int


@dataclass(frozen=True)
class MapSpec:
    """Definition of a map.

    :param type: ``enum bpf_map_type``.
    :param key_bytes: size of a key, in bytes.
    :param value_bytes: size of a value, in bytes.
    :param max_entries: capacity in entries; of a ring buffer, in bytes.
    :param flags: ``BPF_F_*`` flags of BPF_MAP_CREATE.
    """

    type: int
    key_bytes: int
    value_bytes: int
    max_entries: int
    flags: int = 0


@dataclass(frozen=True)
class ProgramSpec:
    """The program of one member.

    :param code: the instructions. Each instruction in `references` has 0 where the number belongs.
    :param references: the instructions that need a number when the program is loaded.
    :param lines: source lines of the instructions.
    """

    code: bytes
    references: tuple[Reference, ...] = ()
    lines: tuple[Line, ...] = ()

    def line_of(self, index: int) -> Line | None:
        """Return the source line of the instruction *index*, or None if it is unknown."""
        return max((line for line in self.lines if line.index <= index), default=None)


@dataclass(frozen=True)
class Spec:
    """A compiled program set and its maps.

    :param programs: programs by member of ``struct efuse_ops``.
    :param maps: map definitions by name.
    :param source_hash: SHA-256 of the sources and of everything else that the compiler's result
        depends on, in hexadecimal.
    """

    programs: Mapping[str, ProgramSpec]
    maps: Mapping[str, MapSpec]
    source_hash: str = ""

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.programs)), tuple(sorted(self.maps)), self.source_hash))

    def with_capacity(self, capacity: Mapping[str, int]) -> Spec:
        """Return a copy of the spec with other map capacities.

        :param capacity: entries per map, by name. The capacity of ``blocks`` is rounded up to whole
            sets, and ``tags`` and ``ghosts`` are sized to match. 0 blocks turn off the data cache.
        :raises UsageError: the spec has no such map, or the capacity is out of range.
        """
        maps, programs, capacity = dict(self.maps), dict(self.programs), dict(capacity)
        if "blocks" in capacity and "tags" in maps:
            if not capacity["blocks"]:
                programs.pop("block", None)
            capacity["tags"] = max(1, -(-capacity["blocks"] // WAYS))
            capacity["blocks"] = capacity["tags"] * WAYS
            capacity["ghosts"] = capacity["blocks"] * _GHOSTS
        for name, entries in capacity.items():
            if name not in maps:
                raise UsageError(
                    f"cannot set the capacity of map {name!r}: the programs have no such map",
                    hint="one of " + ", ".join(sorted(maps)),
                )
            if not 0 < entries < 1 << 32:
                raise UsageError(f"cannot give map {name!r} {entries} entries: out of range")
            maps[name] = replace(maps[name], max_entries=entries)
        return replace(self, programs=programs, maps=maps)

    def to_json(self) -> str:
        """Return the spec as JSON text for `from_json`."""
        return json.dumps(
            {
                "format": _FORMAT,
                "source_hash": self.source_hash,
                "maps": {
                    name: [m.type, m.key_bytes, m.value_bytes, m.max_entries, m.flags]
                    for name, m in self.maps.items()
                },
                "programs": {
                    name: {
                        "code": base64.b64encode(program.code).decode("ascii"),
                        "references": [[r.index, r.kind, r.name] for r in program.references],
                        "lines": [[line.index, line.file, line.number] for line in program.lines],
                    }
                    for name, program in self.programs.items()
                },
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """Return the spec that `to_json` wrote.

        :raises CompileError: the text is not a spec, or has another format version.
        """
        try:
            tree: dict[str, Any] = json.loads(text)
            if tree["format"] != _FORMAT:
                raise CompileError(f"the spec has format {tree['format']}, not {_FORMAT}")
            return cls(
                programs={
                    name: ProgramSpec(
                        code=base64.b64decode(program["code"]),
                        references=tuple(Reference(*r) for r in program["references"]),
                        lines=tuple(Line(*line) for line in program["lines"]),
                    )
                    for name, program in tree["programs"].items()
                },
                maps={name: MapSpec(*fields) for name, fields in tree["maps"].items()},
                source_hash=tree["source_hash"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CompileError(f"the spec is damaged: {error}") from error
