# SPDX-License-Identifier: LGPL-2.1-or-later
"""How full the maps of a mount are. Needs root: the kernel shows BPF maps to nobody else."""

from __future__ import annotations

import time

from efuse.control import Connection
from efuse.errors import AttachError
from efuse.stats.model import MapUsage, Sample

__all__ = ["Occupancy", "usage"]


def usage(connection: int) -> tuple[MapUsage, ...]:
    """Return how full each map of the connection's programs is, by name; nothing without programs.

    Counting walks through the maps, so it takes time that grows with what is in them.

    :raises EfuseError: the kernel does not show its maps (EPERM).
    """
    # Here and not above: whoever only reads counters does not need libbpf.
    from efuse.bpf import Attachment

    try:
        attachment = Attachment.open(connection)
    except AttachError:
        if Connection(connection).state == "attached":
            raise
        return ()
    with attachment:
        return tuple(
            MapUsage(name, len(m), m.definition.max_entries)
            for name, m in sorted(attachment.maps.items())
        )


class Occupancy:
    """The usage of many mounts' maps, counted again when it is older than *keep_s* seconds."""

    def __init__(self, keep_s: float = 5.0) -> None:
        self._keep_s = keep_s
        self._known: dict[tuple[int, int], tuple[float, tuple[MapUsage, ...]]] = {}

    def of(self, sample: Sample) -> tuple[MapUsage, ...]:
        """Return the usage of the maps of the mount that *sample* is of."""
        if sample.state != "attached":
            return ()
        key = (sample.connection, sample.enable_seq)
        counted, known = self._known.get(key, (-self._keep_s, ()))
        if time.monotonic() - counted >= self._keep_s:
            known = usage(sample.connection)
            self._known[key] = (time.monotonic(), known)
        return known
