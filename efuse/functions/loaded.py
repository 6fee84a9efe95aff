# SPDX-License-Identifier: LGPL-2.1-or-later
"""The functions that are in the kernel, whichever task loaded them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from efuse.bpf import libbpf
from efuse.bpf.links import struct_ops_links
from efuse.bpf.load import NAME_MAX, Target, open_target
from efuse.bpf.members import CSD_FUNCTION
from efuse.errors import AttachError, NoFunctionError, reason
from efuse.functions.loading import pin_of

__all__ = ["InKernel", "loaded", "unload"]


@dataclass(frozen=True)
class InKernel:
    """A function that is in the kernel.

    :ivar name: by which it is called.
    :ivar scratch_size: bytes that a run of it remembers.
    :ivar args_size: bytes of its arguments.
    :ivar pinned: it stays until it is unloaded; else until the task that loaded it ends.
    """

    name: str
    scratch_size: int
    args_size: int
    pinned: bool


def loaded() -> tuple[InKernel, ...]:
    """Return the functions that are in the kernel, by name.

    :raises AttachError: this task may not look.
    :raises NotSupportedError: csd.ko is not loaded, or this task may not look.
    """
    return tuple(sorted((found for _, found in _links()), key=lambda found: found.name))


def unload(name: str) -> None:
    """Take a function out of the kernel, whoever loaded it. Runs of it fail with ESTALE.

    :raises NoFunctionError: there is none of that name.
    :raises AttachError: this task may not.
    """
    for fd, found in _links():
        if found.name == name:
            try:
                libbpf.link_detach(fd)
                pin_of(name).unlink(missing_ok=True)
            except OSError as error:
                raise AttachError(
                    f"cannot unload the storage function {name!r}: {reason(error)}",
                    hint="run as root",
                ) from error
            return
    raise NoFunctionError(
        f"cannot unload the storage function {name!r}: there is none of that name (ENOENT)",
        hint="efuse csd functions",
    )


def _links() -> Iterator[tuple[int, InKernel]]:
    """Iterate (descriptor of the link, function); the descriptor ends with the step."""
    with open_target(CSD_FUNCTION) as target:
        for _, fd, value in struct_ops_links(CSD_FUNCTION):
            yield fd, _describe(target, value)


def _describe(target: Target, value: bytes) -> InKernel:
    def number(member: str) -> int:
        (found,) = struct.unpack_from("<I", value, target.members[member][1])
        return int(found)

    start = target.members["name"][1]
    raw = value[start : start + NAME_MAX + 1].partition(b"\0")[0]
    name = raw.decode(errors="replace")
    pinned = os.path.lexists(pin_of(name))
    return InKernel(name, number("scratch_size"), number("args_size"), pinned)
