# SPDX-License-Identifier: LGPL-2.1-or-later
"""Put a kernel's numbers in the place of a program's names. Pure: no system call."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType

from efuse.bpf.spec import INSTRUCTION_BYTES, ProgramSpec
from efuse.errors import CompileError

__all__ = ["MODULE_FD_INDEX", "STRUCTURE", "resolve"]

MODULE_FD_INDEX = 1
"""Where the module's BTF descriptor stands in the load's fd_array; 0 would mean the kernel's."""

STRUCTURE = ("field", "bit", "size")
"""The kinds of references to the kernel's own structures."""

_PSEUDO_MAP_FD = 1
_PSEUDO_KFUNC_CALL = 2


def resolve(
    program: ProgramSpec,
    *,
    map_fds: Mapping[str, int],
    kfuncs: Mapping[str, int] = MappingProxyType({}),
    structures: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> bytes:
    """Return the program's instructions as the kernel takes them.

    :param map_fds: descriptor of each map.
    :param kfuncs: BTF id of each kfunc.
    :param structures: of each (kind, name) of the kernel's structures, the number.
    :raises CompileError: the program uses a kfunc or map that is not among them.
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
                hint="the module and the handlers are of different versions: efuse module build",
            )
        registers = registers & 0x0F | source << 4
        struct.pack_into("<BBhi", code, at, opcode, registers, offset, number)
    return bytes(code)
