# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that are run at hooks in the kernel while somebody watches.

A text is C for BCC that includes ``tracing.bpf.h``. Each of its functions takes ``u64 *ctx``, the
hook's arguments (and behind those of a function, at its end, what it returns), and has a hook,
which is named where it is attached. The kernel's structures are read without their headers::

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

``module`` says whose functions, tracepoints and structures are meant: ``"fuse"``, whether it is
built in or not, or ``"efuse"``, which has structs of its own by the same names (its tracepoints
that fs/fuse has, too, cannot be hooked into: the kernel finds its own of the name, and so it does
with a function whose arguments have nothing to tell them apart, such as ``fuse_dev_write``, where
fs/fuse is built in). One spec serves both, and every kernel: offsets are put in when it is loaded.
Tracers may share maps.

Nothing is left attached when a tracer is closed, or its process ends. A ring buffer among the
maps is read with `efuse.bpf.libbpf.Ring`.
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

from efuse import paths
from efuse.bpf import libbpf
from efuse.bpf.compile import compile_text
from efuse.bpf.link import STRUCTURE, resolve
from efuse.bpf.load import create_maps, module_btf_fd
from efuse.bpf.maps import BpfMap, mapping
from efuse.bpf.members import TRACING
from efuse.bpf.spec import ProgramSpec, Spec
from efuse.bpf.types import KernelTypes
from efuse.bpf.verifier import refusal
from efuse.closing import Closing
from efuse.errors import AttachError, NotSupportedError, reason

__all__ = ["Hook", "Tracer", "check_allowed", "shipped"]

_ATTACH = {
    "tp_btf": libbpf.TRACE_RAW_TP,
    "fentry": libbpf.TRACE_FENTRY,
    "fexit": libbpf.TRACE_FEXIT,
}
_LOG_BYTES = 4 << 20
_STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN, _CAP_PERFMON, _CAP_BPF = 21, 38, 39
_KERNELS = "the programs are for Linux 6.12 and 7.3"
_WHO_MAY = "run as root, or with CAP_BPF and CAP_PERFMON"
_NOBODY_MAY = (
    "look at the kernel's lockdown and at the container's rules, or use another kernel:"
    " efuse guest run"
)


def check_allowed() -> None:
    """Raise the error of who may not trace before anything is compiled in vain.

    :raises AttachError: this task may not.
    """
    status = _STATUS.read_text()
    held = int(status.partition("CapEff:")[2].split()[0], 16)
    if not (held >> _CAP_SYS_ADMIN & 1 or (held >> _CAP_BPF & 1 and held >> _CAP_PERFMON & 1)):
        raise AttachError(f"cannot trace: {reason(errno.EPERM)}", hint=_WHO_MAY)


def shipped(name: str) -> Spec:
    """Return the spec of a text that is shipped: compiled with the package, before, or now.

    :param name: of the file in ``bpf_programs/tracing``, without its ending.
    :raises CompileError: it had to be compiled and could not.
    :raises NotSupportedError: it had to be compiled and BCC is not installed.
    """
    path = paths.data("bpf_programs") / "tracing" / f"{name}.c"
    return compile_text(path.read_text(), path.name, interface=TRACING)


@dataclass(frozen=True)
class Hook:
    """A place in the kernel.

    :param kind: ``tp_btf``: a tracepoint; ``fentry``, ``fexit``: a function's begin or end.
    :param name: of the tracepoint or function.
    """

    kind: Literal["tp_btf", "fentry", "fexit"]
    name: str

    def type_id(self, types: KernelTypes) -> int:
        """Return the BTF id that stands for it.

        :raises KeyError: there is no such hook.
        :raises NotSupportedError: the kernel has a tracepoint of the name that a module's has, and
            would take its own.
        """
        if self.kind == "tp_btf":
            name = f"btf_trace_{self.name}"
            if types.hides(name):
                raise NotSupportedError(
                    f"cannot trace at tracepoint {self.name} of module {types.module}: the kernel"
                    " has one of that name",
                    hint="hook into the function that has it",
                )
            return types.typedef(name)
        return types.function(self.name)


class Tracer(Closing):
    """Programs at their hooks until it is closed. A context manager.

    :param spec: of the programs.
    :param hooks: of each program.
    :param module: whose hooks and structures they are.
    :param maps: maps to use in place of new ones of these names; they stay the caller's.
    :ivar maps: all maps of the programs, by name.
    :raises NotSupportedError: this kernel has no such hook or structure.
    :raises AttachError: this task may not trace, or a map could not be made.
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
        """Return how often a program was not run, since it was running on that CPU."""
        return sum(libbpf.program_info(fd).recursion_misses for fd in self._programs)

    def close(self) -> None:
        """Detach the programs, and close the maps that are the tracer's own."""
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
                code = resolve(spec.programs[name], map_fds=map_fds, structures=structures)
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
    """Return what the programs want to know of the kernel's structures."""
    wanted = {
        (reference.kind, reference.name)
        for program in programs
        for reference in program.references
        if reference.kind in STRUCTURE
    }
    return {(kind, name): _structure(kind, name.split("|"), types) for kind, name in wanted}


def _structure(kind: str, names: list[str], types: KernelTypes) -> int:
    """Return the number of the first of *names* that the kernel has."""
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
    raise refusal(name, program, -fd, log)


def _words(hook: Hook) -> str:
    return f"{'tracepoint' if hook.kind == 'tp_btf' else 'function'} {hook.name}"


def _not_attached(hook: Hook, error: OSError) -> AttachError:
    # The program was loaded: it is not for want of a capability.
    hints = {errno.EPERM: _NOBODY_MAY}
    return AttachError(
        f"cannot trace at {_words(hook)}: {reason(error)}", hint=hints.get(error.errno or 0)
    )
