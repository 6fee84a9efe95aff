# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a compiled text is before it meets a kernel: instructions with names in them.

A spec makes no system call. Two specs are equal when they would load the same programs and maps.
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
    "Spec",
]

INSTRUCTION_BYTES = 8
"""Size of one BPF instruction; a 64-bit load takes two."""

WAYS = 8
"""Slots of ``blocks`` for each set of ``tags`` (``EFUSE_WAYS``)."""

MAP_RINGBUF = 27
"""The type of a ring buffer (``BPF_MAP_TYPE_RINGBUF``): its capacity is in bytes."""

_GHOSTS = 4  # Elements of `ghosts` for each slot: as maps.c has them.

_FORMAT = 1


@dataclass(frozen=True, order=True)
class Reference:
    """An instruction that needs a number which only the kernel can give.

    :param index: which instruction.
    :param kind: ``"map"`` (a map's descriptor), ``"kfunc"`` (a function's BTF id), or of a
        structure of the kernel's ``"field"`` (a member's offset), ``"bit"`` or ``"size"``.
    :param name: of the map, the kfunc, the struct and its member (``fuse_req.in.h.nodeid``), or
        more than one of these, between bars: the first that the kernel has.
    """

    index: int
    kind: str
    name: str


@dataclass(frozen=True, order=True)
class Line:
    """From this instruction on, the code stems from this line of the text.

    :param index: which instruction.
    :param file: name of the text.
    :param number: the line, from 1 on.
    """

    index: int
    file: str
    number: int


@dataclass(frozen=True)
class MapSpec:
    """A map's definition.

    :param type: ``enum bpf_map_type``.
    :param key_bytes: size of a key.
    :param value_bytes: size of a value.
    :param max_entries: capacity.
    :param flags: ``BPF_F_*`` of BPF_MAP_CREATE.
    """

    type: int
    key_bytes: int
    value_bytes: int
    max_entries: int
    flags: int = 0


@dataclass(frozen=True)
class ProgramSpec:
    """One member's program.

    :param code: its instructions; those that `references` names hold zeros in place of the number.
    """

    code: bytes
    references: tuple[Reference, ...] = ()
    lines: tuple[Line, ...] = ()

    def line_of(self, index: int) -> Line | None:
        """Return the line of the text that instruction *index* stems from, or None."""
        return max((line for line in self.lines if line.index <= index), default=None)


@dataclass(frozen=True)
class Spec:
    """A compiled set of programs with its maps.

    :param programs: by member of ``struct efuse_ops``.
    :param maps: by name.
    :param source_hash: SHA-256 of what it was compiled from, in hexadecimal.
    """

    programs: Mapping[str, ProgramSpec]
    maps: Mapping[str, MapSpec]
    source_hash: str = ""

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.programs)), tuple(sorted(self.maps)), self.source_hash))

    def with_capacity(self, capacity: Mapping[str, int]) -> Spec:
        """Return the same spec with other map capacities.

        :param capacity: entries per map, by its name. Those of ``blocks`` become whole sets, for
            which ``tags`` and ``ghosts`` have room; with 0 there is no data cache.
        :raises UsageError: there is no such map, or the number is not positive.
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
        """Return the spec as JSON text; from_json() is its inverse."""
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
        """Return the spec that to_json() wrote.

        :raises CompileError: the text is none, or of another version.
        """
        try:
            tree: dict[str, Any] = json.loads(text)
            if tree["format"] != _FORMAT:
                raise CompileError(f"the spec is of format {tree['format']}, not {_FORMAT}")
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
