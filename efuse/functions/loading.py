# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compile a function from C and load it into the kernel, where it is run by name."""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import replace
from pathlib import Path

from efuse import locations
from efuse.bpf import libbpf, pins
from efuse.bpf.compile import compile_text
from efuse.bpf.compose import entry
from efuse.bpf.load import create_maps, create_set, load_programs, open_target
from efuse.bpf.members import CSD_FUNCTION, Interface
from efuse.bpf.spec import ProgramSpec, Spec
from efuse.closing import Closing
from efuse.errors import AttachError, CompileError, UsageError, reason
from efuse.kernel_fs import BPFFS, mount_bpffs

__all__ = [
    "Linked",
    "Loaded",
    "compile_function",
    "compiled_set",
    "function_text",
    "link",
    "load",
    "pin_of",
]

# The opcodes of a program that only returns a constant.
_MOVE, _EXIT = 0xB7, 0x95


def pin_of(name: str) -> Path:
    """Return the path at which the link of a function is pinned, if it is pinned."""
    return BPFFS / "efuse-csd" / name


def function_text(name: str) -> str:
    """Return the C text of a shipped function.

    :raises UsageError: no shipped function has this name.
    """
    directory = locations.data("csd") / "functions"
    path = directory / f"{name}.c"
    if not path.is_file():
        known = sorted(found.stem for found in directory.glob("*.c"))
        raise UsageError(f"there is no storage function {name!r}", hint="one of " + " ".join(known))
    return path.read_text()


def compile_function(text: str, name: str) -> tuple[Spec, dict[str, int]]:
    """Compile a function; return its programs and its constants.

    :param text: C text for BCC; see csd.bpf.h.
    :param name: name of the function in error messages.
    :returns: the programs; the constants by name of the member of ``struct csd_function``.
    :raises CompileError: the text does not compile, or has no ``step()``.
    """
    return _compile(CSD_FUNCTION, text, name)


def _compile(interface: Interface, text: str, name: str) -> tuple[Spec, dict[str, int]]:
    spec = compile_text(text, f"{name}.c", interface=interface)
    required = interface.members[0]
    if required not in spec.programs:
        raise CompileError(f"{name}.c has no {required}()", hint=f"define {interface.example}")
    numbers = {
        constant: _number(constant, spec.programs[constant])
        for constant in interface.constants
        if constant in spec.programs
    }
    programs = {
        member: entry(member, [spec.programs[member]])
        for member in interface.members
        if member in spec.programs
    }
    return replace(spec, programs=programs), numbers


def _number(name: str, program: ProgramSpec) -> int:
    """Return the number that a program of two instructions returns."""
    if len(program.code) == 16:
        opcode, registers, offset, number = struct.unpack_from("<BBhi", program.code)
        if (opcode, registers, offset, program.code[8]) == (_MOVE, 0, 0, _EXIT) and number >= 0:
            return int(number)
    raise CompileError(f"{name}() does not return a constant", hint="use CSD_SCRATCH and CSD_ARGS")


class Linked(Closing):
    """Programs in the kernel that go away when this object is closed, unless they are pinned.

    :ivar name: name of the programs in the kernel.
    """

    def __init__(self, name: str, link_fd: int) -> None:
        self.name = name
        self._link_fd = link_fd

    def close(self) -> None:
        """Take the programs out of the kernel, unless they are pinned."""
        if self._link_fd >= 0:
            os.close(self._link_fd)
            self._link_fd = -1

    def _pin(self, path: Path) -> Path:
        try:
            mount_bpffs()
            pins.make_directory(path.parent, exist_ok=True)
            # A stale pin of programs of this name that are gone.
            pins.remove(path)
            libbpf.object_pin(self._link_fd, path)
        except OSError as error:
            raise AttachError(
                f"cannot pin {self.name!r} at {path}: {reason(error)}", hint="run as root"
            ) from error
        return path


class Loaded(Linked):
    """A function in the kernel. Its runs fail with ESTALE after it has been unloaded."""

    def pin(self) -> Path:
        """Pin the function, so that it stays until `efuse.functions.unload`; return the path.

        :raises AttachError: bpffs cannot be mounted, this process lacks the right to pin, or
            another user can change the directory of the pin.
        """
        return self._pin(pin_of(self.name))


def compiled_set(interface: Interface, text: str, name: str) -> int:
    """Compile a text and load its programs; return the descriptor of a set ready to register.

    :raises EfuseError: for the same reasons as `load`, except that the name is not checked.
    """
    with open_target(interface) as target:
        spec, numbers = _compile(interface, text, name)
        map_fds = create_maps(spec.maps, {})
        try:
            with load_programs(target, spec.programs, map_fds) as fds:
                return create_set(target, fds, numbers, name)
        finally:
            for fd in map_fds.values():
                os.close(fd)


def link(interface: Interface, text: str, name: str, taken: int, hint: str) -> int:
    """Register a text's programs; return the descriptor of the link that keeps them.

    :param taken: the errno by which the kernel reports that the place is taken already.
    :param hint: what the user can do in that case.
    :raises EfuseError: for the same reasons as `load`.
    """
    set_fd = compiled_set(interface, text, name)
    try:
        return libbpf.link_create(set_fd)
    except OSError as error:
        raise AttachError(
            f"cannot load {name!r} as struct {interface.struct}: {reason(error)}",
            hint=hint if error.errno == taken else "run as root",
        ) from error
    finally:
        os.close(set_fd)


def load(name: str, text: str | None = None) -> Loaded:
    """Load a function into the kernel; compile it first if its compiled form is not cached.

    :param name: name by which the function is to be run.
    :param text: C text; None: that of the shipped function with this name.
    :raises UsageError: no shipped function has this name, or the name is not valid.
    :raises CompileError: the text does not compile, or has no ``step()``.
    :raises VerifierError: the kernel's verifier rejects the function.
    :raises AttachError: a function of this name exists, or this process lacks the right to load.
    :raises NotSupportedError: csd.ko is not loaded.
    """
    text = function_text(name) if text is None else text
    return Loaded(name, link(CSD_FUNCTION, text, name, errno.EEXIST, "unload the loaded one first"))
