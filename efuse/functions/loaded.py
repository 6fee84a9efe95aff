# SPDX-License-Identifier: LGPL-2.1-or-later
"""The functions in the kernel, including those that other processes loaded."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from efuse.bpf import libbpf, pins
from efuse.bpf.load import NAME_MAX, Target, open_target
from efuse.bpf.members import CSD_FUNCTION
from efuse.bpf.struct_ops import struct_ops_links
from efuse.errors import AttachError, NoFunctionError, reason
from efuse.functions.loading import pin_of

__all__ = ["InKernel", "loaded", "unload"]


@dataclass(frozen=True)
class InKernel:
    """A function that is in the kernel.

    :ivar name: name by which the function is run.
    :ivar scratch_size: bytes of memory that each run of the function keeps between blocks.
    :ivar args_size: bytes of the function's arguments.
    :ivar pinned: whether the function stays until it is unloaded; otherwise it goes when the
        process that loaded it ends.
    """

    name: str
    scratch_size: int
    args_size: int
    pinned: bool


def loaded() -> tuple[InKernel, ...]:
    """Return the functions in the kernel, sorted by name.

    :raises AttachError: this process lacks the right to list BPF links.
    :raises NotSupportedError: csd.ko is not loaded, or this process lacks the right to look.
    """
    return tuple(sorted((found for _, found in _links()), key=lambda found: found.name))


def unload(name: str) -> None:
    """Unload a function, even if another process loaded it. Its runs fail with ESTALE.

    :param name: name of the function.
    :raises NoFunctionError: the kernel has no function of this name.
    :raises AttachError: this process lacks the right to unload it; or it is unloaded, but its pin
        is in a directory that another user can change.
    """
    for fd, found in _links():
        if found.name == name:
            try:
                libbpf.link_detach(fd)
                pins.remove(pin_of(name))
            except OSError as error:
                raise AttachError(
                    f"cannot unload the storage function {name!r}: {reason(error)}",
                    hint="run as root",
                ) from error
            return
    raise NoFunctionError(
        f"cannot unload the storage function {name!r}: no such function is loaded (ENOENT)",
        hint="efuse csd functions",
    )


def _links() -> Iterator[tuple[int, InKernel]]:
    """Iterate over (descriptor of the link, function). A descriptor is valid for its step only."""
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
