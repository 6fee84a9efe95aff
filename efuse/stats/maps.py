# SPDX-License-Identifier: LGPL-2.1-or-later
"""How full the maps of a mount are. Needs root: the kernel shows BPF maps to nobody else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

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
            MapUsage(name, _used(name, attachment.maps), m.definition.max_entries)
            for name, m in sorted(attachment.maps.items())
            if name not in _DESCRIBING
        )


# Maps that hold no values: what `blocks` holds and how it is used, what the choice of paths has
# measured, and what is told to a listener.
_DESCRIBING = ("events", "files", "geometry", "ghosts", "listening", "lost", "profiles", "tags")


def _used(name: str, maps: Mapping[str, Any]) -> int:
    if name == "blocks" and "tags" in maps:
        return sum(1 for _ in maps["tags"].slots())
    return len(maps[name])


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
