# SPDX-License-Identifier: LGPL-2.1-or-later
"""Put a kernel's numbers in the place of a program's names. Pure: no system call."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from efuse.bpf.spec import INSTRUCTION_BYTES, ProgramSpec
from efuse.errors import CompileError

__all__ = ["MODULE_FD_INDEX", "resolve"]

MODULE_FD_INDEX = 1
"""Where the module's BTF descriptor stands in the load's fd_array; 0 would mean the kernel's."""

_PSEUDO_MAP_FD = 1
_PSEUDO_KFUNC_CALL = 2


def resolve(
    program: ProgramSpec, *, kfuncs: Mapping[str, int], map_fds: Mapping[str, int]
) -> bytes:
    """Return the program's instructions as the kernel takes them.

    :param kfuncs: BTF id of each kfunc.
    :param map_fds: descriptor of each map.
    :raises CompileError: the program uses a kfunc or map that is not among them.
    """
    code = bytearray(program.code)
    for reference in program.references:
        at = reference.index * INSTRUCTION_BYTES
        opcode, registers, offset, _ = struct.unpack_from("<BBhi", code, at)
        if reference.kind == "map":
            numbers, source = map_fds, _PSEUDO_MAP_FD
        else:
            numbers, source, offset = kfuncs, _PSEUDO_KFUNC_CALL, MODULE_FD_INDEX
        number = numbers.get(reference.name)
        if number is None:
            raise CompileError(
                f"cannot link the program: there is no {reference.kind} {reference.name!r}",
                hint="the module and the handlers are of different versions: efuse module build",
            )
        registers = registers & 0x0F | source << 4
        struct.pack_into("<BBhi", code, at, opcode, registers, offset, number)
    return bytes(code)
