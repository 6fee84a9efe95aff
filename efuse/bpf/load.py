# SPDX-License-Identifier: LGPL-2.1-or-later
"""Load a spec into the kernel: its maps, its programs, and the struct_ops set that holds them."""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from efuse.bpf import libbpf
from efuse.bpf.kernel_types import KernelTypes
from efuse.bpf.members import EFUSE_OPS, Interface
from efuse.bpf.relocation import relocate
from efuse.bpf.spec import MapSpec, ProgramSpec, Spec
from efuse.bpf.values import Geometry
from efuse.bpf.verifier import verifier_error
from efuse.errors import AttachError, NotSupportedError, UsageError, reason

__all__ = [
    "NAME_MAX",
    "Target",
    "create_maps",
    "create_set",
    "describe_cache",
    "load_programs",
    "module_btf_fd",
    "open_target",
]

NAME_MAX = 31
"""Length limit of a program set's name, in bytes."""
_LOG_BYTES = 4 << 20


@dataclass(frozen=True)
class Target:
    """What loading needs to know of a loaded module.

    :param interface: the interface that the programs implement.
    :param types: types of the kernel and of the module.
    :param btf_fd: descriptor of the module's BTF object.
    :param ops_id: BTF id of the interface's struct.
    :param members: (index in the struct, offset in the value in bytes) of each member.
    :param value_id: BTF id of ``struct bpf_struct_ops_<type>``, the value around the struct.
    :param value_bytes: size of that value, in bytes.
    """

    interface: Interface
    types: KernelTypes
    btf_fd: int
    ops_id: int
    members: Mapping[str, tuple[int, int]]
    value_id: int
    value_bytes: int

    def describe(self, value: bytes) -> tuple[int, str, dict[str, int]]:
        """Return (connection, name, program id by member) of a registered set's value."""
        (connection,) = struct.unpack_from("<I", value, self.members["connection"][1])
        start = self.members["name"][1]
        name = value[start : start + NAME_MAX + 1].partition(b"\0")[0].decode(errors="replace")
        programs = {}
        for member, (_, offset) in self.members.items():
            if member not in ("connection", "flags", "name"):
                (number,) = struct.unpack_from("<Q", value, offset)
                if number:
                    programs[member] = number
        return connection, name, programs


@contextmanager
def open_target(interface: Interface = EFUSE_OPS) -> Iterator[Target]:
    """Open the types of the loaded module. They are closed when the context ends.

    :param interface: the interface that programs will implement.
    :raises NotSupportedError: the module is not loaded, or does not define the interface.
    """
    value = f"bpf_struct_ops_{interface.struct}"
    with KernelTypes(interface.module, load=interface.load) as types:
        try:
            ops_id = types.own_struct(interface.struct)
            value_id = types.own_struct(value)
            data = types.offset(value, "data")
        except KeyError as error:
            raise NotSupportedError(
                f"the loaded module {interface.module} does not define struct {interface.struct}",
                hint=f"build the module again, then: {interface.load}",
            ) from error
        members = {
            member.name: (index, data + member.bits // 8)
            for index, member in enumerate(types.members(interface.struct))
        }
        fd = module_btf_fd(interface.module)
        try:
            yield Target(interface, types, fd, ops_id, members, value_id, types.size(value))
        finally:
            os.close(fd)


def module_btf_fd(module: str) -> int:
    """Return a descriptor of a loaded module's BTF. The caller closes it.

    :raises NotSupportedError: the module has no BTF, or this process may not list BTF objects.
    """
    try:
        # Ids only grow, and the module's is among the last.
        for number in reversed(list(libbpf.btf_ids())):
            fd = libbpf.btf_by_id(number)
            if fd is None:
                continue
            if libbpf.btf_name(fd) == module:
                return fd
            os.close(fd)
    except OSError as error:
        raise NotSupportedError(
            f"cannot list the kernel's BTF objects: {reason(error)}", hint="run as root"
        ) from error
    raise NotSupportedError(f"module {module} has no BTF", hint="efuse module build")


def describe_cache(spec: Spec, fds: Mapping[str, int]) -> None:
    """Store the size of the data cache for the programs: 0 sets if no program looks into it.

    :raises AttachError: the kernel refused to change the map.
    """
    if "geometry" in spec.maps and "tags" in spec.maps:
        sets = spec.maps["tags"].max_entries if "block" in spec.programs else 0
        try:
            libbpf.map_update(fds["geometry"], bytes(4), Geometry(sets).encode())
        except OSError as error:
            raise AttachError(
                f"cannot store the size of the data cache: {reason(error)}", hint="run as root"
            ) from error


def create_maps(maps: Mapping[str, MapSpec], existing: Mapping[str, int]) -> dict[str, int]:
    """Create the maps that are not in *existing*. Return the descriptors of the new maps.

    :raises AttachError: a map could not be created.
    """
    created: dict[str, int] = {}
    with ExitStack() as undo:
        for name, m in maps.items():
            if name in existing:
                continue
            try:
                fd = libbpf.map_create(
                    m.type, name, m.key_bytes, m.value_bytes, m.max_entries, m.flags
                )
            except OSError as error:
                raise _no_map(name, m, error) from error
            undo.callback(os.close, fd)
            created[name] = fd
        undo.pop_all()
    return created


def _no_map(name: str, m: MapSpec, error: OSError) -> AttachError:
    mebibytes = -(-m.max_entries * m.value_bytes // (1 << 20))
    hints = {
        errno.EPERM: "run as root",
        errno.E2BIG: "the kernel makes no map that large: make it smaller, for example with"
        " --data-cache 64M",
        errno.ENOMEM: "the machine or this task's memory cgroup lacks the memory: make the map"
        " smaller, for example with --data-cache 64M",
    }
    return AttachError(
        f"cannot create map {name!r} of {m.max_entries} entries, {mebibytes} MiB: {reason(error)}",
        hint=hints.get(error.errno or 0, "try a smaller capacity"),
    )


@contextmanager
def load_programs(
    target: Target, programs: Mapping[str, ProgramSpec], map_fds: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Verify and load each member's program. The descriptors are closed when the context ends.

    :raises VerifierError: the kernel refused a program.
    :raises CompileError: a program uses a kfunc that this module does not have.
    :raises NotSupportedError: this module's struct lacks a member.
    """
    names = {r.name for p in programs.values() for r in p.references if r.kind == "kfunc"}
    kfuncs = {}
    for name in names:
        try:
            kfuncs[name] = target.types.own_function(name)
        except KeyError:
            continue  # relocate() names the program that needs it
    with ExitStack() as stack:
        fds = {}
        for member, program in programs.items():
            if member not in target.members:
                raise NotSupportedError(
                    f"the loaded module {target.interface.module} has no member {member!r}",
                    hint=f"build the module again, then: {target.interface.load}",
                )
            code = relocate(program, kfuncs=kfuncs, map_fds=map_fds)
            fds[member] = _load(target, member, program, code)
            stack.callback(os.close, fds[member])
        yield fds


def _load(target: Target, member: str, program: ProgramSpec, code: bytes) -> int:
    def attempt(log_bytes: int) -> tuple[int, str]:
        return libbpf.program_load(
            member,
            code,
            member=target.members[member][0],
            struct_id=target.ops_id,
            btf_fd=target.btf_fd,
            log_bytes=log_bytes,
        )

    fd, _ = attempt(0)
    if fd >= 0:
        return fd
    fd, log = attempt(_LOG_BYTES)
    if fd >= 0:
        return fd
    raise verifier_error(member, program, -fd, log)


def create_set(
    target: Target, program_fds: Mapping[str, int], numbers: Mapping[str, int], name: str
) -> int:
    """Make a set of loaded programs, ready to be registered. Return the descriptor of its map.

    :param program_fds: descriptor of each member's program.
    :param numbers: value of each member of the struct that is a number.
    :param name: name of the set, 1 to 31 bytes.
    :raises UsageError: the name has other characters or another length.
    :raises AttachError: the kernel refused the set.
    """
    if not re.fullmatch(rf"[A-Za-z0-9_.-]{{1,{NAME_MAX}}}", name):
        raise UsageError(
            f"cannot name the programs {name!r}: not a valid name",
            hint=f"use 1 to {NAME_MAX} letters, digits, '_', '.' or '-'",
        )
    raw = name.encode()
    value = bytearray(target.value_bytes)
    for member, fd in program_fds.items():
        struct.pack_into("<Q", value, target.members[member][1], fd)
    for member, number in numbers.items():
        struct.pack_into("<I", value, target.members[member][1], number)
    start = target.members["name"][1]
    value[start : start + len(raw)] = raw
    try:
        btf_fd = libbpf.btf_load(_own_btf())
        try:
            set_fd = libbpf.struct_ops_map_create(
                target.interface.struct, target.value_bytes, target.value_id, btf_fd, target.btf_fd
            )
        finally:
            os.close(btf_fd)
        try:
            libbpf.map_update(set_fd, bytes(4), bytes(value))
        except BaseException:
            os.close(set_fd)
            raise
    except OSError as error:
        raise AttachError(f"cannot make a program set: {reason(error)}") from error
    return set_fd


def _own_btf() -> bytes:
    """Return a minimal BTF, with one int. A struct_ops map has to name a BTF object."""
    strings = b"\0int\0"
    types = struct.pack("<IIII", 1, 1 << 24, 4, 1 << 24 | 32)
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    return header + types + strings
