# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the links of eFuse's struct_ops sets, of all processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from efuse.bpf import libbpf
from efuse.bpf.members import Interface
from efuse.errors import AttachError, reason

__all__ = ["struct_ops_links", "value_of"]


def struct_ops_links(interface: Interface) -> Iterator[tuple[int, int, bytes]]:
    """Yield (link id, link descriptor, value) of each set of *interface*.

    The descriptor is closed when the iteration continues.

    :raises AttachError: this process may not list BPF links.
    """
    try:
        for link_id in libbpf.link_ids():
            fd = libbpf.link_by_id(link_id)
            if fd is None:
                continue
            try:
                value = value_of(fd, interface)
                if value is not None:
                    yield link_id, fd, value
            finally:
                os.close(fd)
    except OSError as error:
        raise AttachError(
            f"cannot list the kernel's BPF links: {reason(error)}", hint="run as root"
        ) from error


def value_of(link_fd: int, interface: Interface) -> bytes | None:
    """Return the value of the set that a link holds, or None if it is not of *interface*."""
    map_id = libbpf.link_info(link_fd).map_id
    fd = libbpf.map_by_id(map_id) if map_id else None
    if fd is None:
        return None
    try:
        info = libbpf.map_info(fd)
        if info.name != interface.struct:
            return None
        return libbpf.map_lookup(fd, bytes(4), info.value_bytes)
    finally:
        os.close(fd)
