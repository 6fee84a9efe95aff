# SPDX-License-Identifier: LGPL-2.1-or-later
"""Replace the names in a program by the numbers of the running kernel. Pure: no system calls."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType

from efuse.bpf.spec import INSTRUCTION_BYTES, ProgramSpec
from efuse.errors import CompileError

__all__ = ["STRUCTURE", "relocate"]

MODULE_FD_INDEX = 1
"""Index of the module's BTF descriptor in the fd_array of the load. 0 means the kernel's BTF."""

STRUCTURE = ("field", "bit", "size")
"""Kinds of references to structures of the kernel."""

_PSEUDO_MAP_FD = 1
_PSEUDO_KFUNC_CALL = 2


def relocate(
    program: ProgramSpec,
    *,
    map_fds: Mapping[str, int],
    kfuncs: Mapping[str, int] = MappingProxyType({}),
    structures: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> bytes:
    """Return the instructions of *program* as the kernel expects them.

    :param map_fds: descriptor of each map, by name.
    :param kfuncs: BTF id of each kfunc, by name.
    :param structures: number for each (kind, name) of the kernel's structures.
    :raises CompileError: the program refers to a name that has no number here.
    """
    code = bytearray(program.code)
    for reference in program.references:
        at = reference.index * INSTRUCTION_BYTES
        opcode, registers, offset, _ = struct.unpack_from("<BBhi", code, at)
        if reference.kind == "map":
            number, source = map_fds.get(reference.name), _PSEUDO_MAP_FD
        elif reference.kind in STRUCTURE:
            number, source = structures.get((reference.kind, reference.name)), 0
        else:
            number, source = kfuncs.get(reference.name), _PSEUDO_KFUNC_CALL
            offset = MODULE_FD_INDEX
        if number is None:
            raise CompileError(
                f"cannot link the program: there is no {reference.kind} {reference.name!r}",
                hint="the module and the handlers have different versions: efuse module build",
            )
        registers = registers & 0x0F | source << 4
        struct.pack_into("<BBhi", code, at, opcode, registers, offset, number)
    return bytes(code)
