# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run BPF programs at hooks in the kernel while a process watches.

A text is C for BCC that includes ``tracing.bpf.h``. Each of its functions takes ``u64 *ctx``: the
arguments of the hook, followed by the return value for a hook at the end of a function. The hook of
each function is chosen when the programs are attached. Structures of the kernel are read without
their headers::

    #include "tracing.bpf.h"

    FIELD(req_opcode, 1, fuse_req, in.h.opcode)
    BPF_TABLE("percpu_array", int, u64, counts, 64);

    int sent(u64 *ctx)
    {
            u32 opcode = 0;
            u64 *count, req = ctx[0];

            if (!req)
                    return 0;
            READ(opcode, req, req_opcode());
            count = counts.lookup(&opcode);
            if (count)
                    ++*count;
            return 0;
    }

>>> spec = compile_text(text, "counts.c", interface=TRACING)
>>> hooks = {"sent": Hook("tp_btf", "fuse_request_send")}
>>> with Tracer(spec, hooks, module="fuse") as tracer:
...     tracer.maps["counts"][14]

``module`` is the module whose functions, tracepoints and structures are meant: ``"fuse"``, built in
or not, or ``"efuse"``, which has its own structs of the same names. Some names of ``"efuse"``
cannot be hooked, because the kernel finds its own symbol first: tracepoints that fs/fuse has too,
and, if fs/fuse is built in, functions whose arguments do not differ, such as ``fuse_dev_write``.

One spec serves both modules and every kernel: offsets are filled in when it is loaded. Tracers may
share maps. A ring buffer among the maps is read with `efuse.bpf.libbpf.Ring`.

Closing the tracer detaches all programs, and so does the end of its process.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from efuse import locations
from efuse.bpf import libbpf
from efuse.bpf.compile import compile_text
from efuse.bpf.kernel_types import KernelTypes
from efuse.bpf.load import create_maps, module_btf_fd
from efuse.bpf.maps import BpfMap, mapping
from efuse.bpf.members import TRACING
from efuse.bpf.relocation import STRUCTURE, relocate
from efuse.bpf.spec import ProgramSpec, Spec
from efuse.bpf.verifier import verifier_error
from efuse.closing import Closing
from efuse.errors import AttachError, NotSupportedError, reason
from efuse.module.kernel import PATCHED

__all__ = ["Hook", "Tracer", "check_allowed", "may_trace", "shipped"]

_ATTACH = {
    "tp_btf": libbpf.TRACE_RAW_TP,
    "fentry": libbpf.TRACE_FENTRY,
    "fexit": libbpf.TRACE_FEXIT,
}
_LOG_BYTES = 4 << 20
_STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN, _CAP_PERFMON, _CAP_BPF = 21, 38, 39
_KERNELS = f"the programs are for Linux {' and '.join(PATCHED)}"
_WHO_MAY = "run as root, or with CAP_BPF and CAP_PERFMON"
_NOBODY_MAY = (
    "check the kernel's lockdown and the container's rules, or use another kernel: efuse guest run"
)


def may_trace() -> bool:
    """Return whether this process has the capabilities to trace: CAP_BPF and CAP_PERFMON.

    CAP_SYS_ADMIN includes both. The user id does not matter: root may lack them in a container.
    """
    status = _STATUS.read_text()
    held = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(held >> _CAP_SYS_ADMIN & 1 or (held >> _CAP_BPF & 1 and held >> _CAP_PERFMON & 1))


def check_allowed() -> None:
    """Check that this process may trace, before anything is compiled for nothing.

    :raises AttachError: the process lacks the capabilities.
    """
    if not may_trace():
        raise AttachError(f"cannot trace: {reason(errno.EPERM)}", hint=_WHO_MAY)


def shipped(name: str) -> Spec:
    """Return the spec of a shipped text: shipped with the package, cached, or compiled now.

    :param name: name of the file in ``bpf_programs/tracing``, without ``.c``.
    :raises CompileError: compiling was necessary and failed.
    :raises NotSupportedError: compiling is necessary and BCC is not installed.
    """
    path = locations.data("bpf_programs") / "tracing" / f"{name}.c"
    return compile_text(path.read_text(), path.name, interface=TRACING)


@dataclass(frozen=True)
class Hook:
    """A place in the kernel that a program can be attached to.

    :param kind: ``tp_btf`` for a tracepoint; ``fentry`` or ``fexit`` for the start or the end of a
        function.
    :param name: name of the tracepoint or function.
    """

    kind: Literal["tp_btf", "fentry", "fexit"]
    name: str

    def type_id(self, types: KernelTypes) -> int:
        """Return the BTF id of the hook.

        :raises KeyError: the kernel has no such hook.
        :raises NotSupportedError: the module's tracepoint has the same name as one of the kernel,
            so that the kernel would attach to its own.
        """
        if self.kind == "tp_btf":
            name = f"btf_trace_{self.name}"
            if types.hides(name):
                raise NotSupportedError(
                    f"cannot trace at tracepoint {self.name} of module {types.module}: the kernel"
                    " has one with the same name",
                    hint="hook into the function that contains it",
                )
            return types.typedef(name)
        return types.function(self.name)


class Tracer(Closing):
    """Run programs at their hooks until it is closed. A context manager.

    :param spec: the compiled programs.
    :param hooks: hook of each program, by the program's name.
    :param module: module whose hooks and structures are meant; None for the kernel alone.
    :param maps: maps to use instead of new ones, by name. The caller keeps and closes them.
    :ivar maps: all maps of the programs, by name.
    :raises NotSupportedError: this kernel lacks a hook or a structure.
    :raises AttachError: this process may not trace, or a map could not be created.
    :raises VerifierError: the kernel refused a program.
    """

    def __init__(
        self,
        spec: Spec,
        hooks: Mapping[str, Hook],
        *,
        module: str | None = None,
        maps: Mapping[str, BpfMap[Any, Any]] = MappingProxyType({}),
    ) -> None:
        self._open = ExitStack()
        self._programs: list[int] = []
        with ExitStack() as undo:
            undo.callback(self.close)
            fds = {name: m.fd for name, m in maps.items()}
            new = create_maps(spec.maps, fds)
            own = {name: mapping(fd, name, spec.maps[name]) for name, fd in new.items()}
            for fd in new.values():
                self._open.callback(os.close, fd)
            self.maps: Mapping[str, BpfMap[Any, Any]] = {**maps, **own}
            self._attach(spec, hooks, module, {**fds, **new})
            undo.pop_all()

    def missed(self) -> int:
        """Return how many runs of programs were skipped because the program was already running."""
        return sum(libbpf.program_info(fd).recursion_misses for fd in self._programs)

    def close(self) -> None:
        """Detach the programs, and close the maps that the tracer created."""
        self._programs = []
        self._open.close()

    def _attach(
        self, spec: Spec, hooks: Mapping[str, Hook], module: str | None, map_fds: Mapping[str, int]
    ) -> None:
        with KernelTypes(module) as types, ExitStack() as loaded:
            btf_fd = 0
            if types.module:
                btf_fd = module_btf_fd(types.module)
                loaded.callback(os.close, btf_fd)
            structures = _structures([spec.programs[name] for name in hooks], types)
            attached = []
            for name, hook in hooks.items():
                code = relocate(spec.programs[name], map_fds=map_fds, structures=structures)
                fd = _load(name, spec.programs[name], code, hook, types, btf_fd)
                self._open.callback(os.close, fd)
                self._programs.append(fd)
                attached.append((hook, fd))
            for hook, fd in attached:
                try:
                    self._open.callback(os.close, libbpf.tracing_attach(fd))
                except OSError as error:
                    raise _not_attached(hook, error) from error


def _structures(programs: Iterable[ProgramSpec], types: KernelTypes) -> dict[tuple[str, str], int]:
    """Return the numbers that the programs need of the kernel's structures, by (kind, name)."""
    wanted = {
        (reference.kind, reference.name)
        for program in programs
        for reference in program.references
        if reference.kind in STRUCTURE
    }
    return {(kind, name): _structure(kind, name.split("|"), types) for kind, name in wanted}


def _structure(kind: str, names: list[str], types: KernelTypes) -> int:
    """Return the number for the first of *names* that the kernel has."""
    struct, _, path = names[0].partition(".")
    try:
        if kind == "size":
            return types.size(struct)
        if kind == "bit":
            return types.bit_offset(struct, path)
        return types.offset(struct, path)
    except (KeyError, ValueError) as error:
        if names[1:]:
            return _structure(kind, names[1:], types)
        raise NotSupportedError(
            f"cannot trace this kernel: its struct {struct} has no {path or 'definition'}",
            hint=_KERNELS,
        ) from error


def _load(
    name: str, program: ProgramSpec, code: bytes, hook: Hook, types: KernelTypes, btf_fd: int
) -> int:
    try:
        type_id = hook.type_id(types)
    except KeyError as error:
        raise NotSupportedError(
            f"cannot trace this kernel: it has no {_words(hook)} to hook into",
            hint=_KERNELS,
        ) from error

    def attempt(log_bytes: int) -> tuple[int, str]:
        return libbpf.tracing_load(
            name,
            code,
            attach=_ATTACH[hook.kind],
            btf_id=type_id,
            btf_fd=btf_fd if types.is_own(type_id) else 0,
            log_bytes=log_bytes,
        )

    fd, _ = attempt(0)
    if fd >= 0:
        return fd
    if fd == -errno.EPERM:
        raise _not_attached(hook, OSError(errno.EPERM, os.strerror(errno.EPERM)))
    fd, log = attempt(_LOG_BYTES)
    if fd >= 0:
        return fd
    raise verifier_error(name, program, -fd, log)


def _words(hook: Hook) -> str:
    return f"{'tracepoint' if hook.kind == 'tp_btf' else 'function'} {hook.name}"


def _not_attached(hook: Hook, error: OSError) -> AttachError:
    # Loading succeeded, so the process does not lack a capability.
    hints = {errno.EPERM: _NOBODY_MAY}
    return AttachError(
        f"cannot trace at {_words(hook)}: {reason(error)}", hint=hints.get(error.errno or 0)
    )
