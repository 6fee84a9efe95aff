# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measure how full the maps of a mount are. Needs root: only root can read BPF maps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from efuse.control import Connection
from efuse.errors import AttachError
from efuse.stats.model import MapUsage, Sample

__all__ = ["Occupancy", "usage"]


def usage(connection: int) -> tuple[MapUsage, ...]:
    """Return the usage of each map of a connection's programs, by name; empty without programs.

    Counting walks through the maps, so it takes time in proportion to their content.

    :raises EfuseError: the kernel does not let this process read its maps (EPERM).
    """
    # Imported here: reading counters alone does not need libbpf.
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


# Maps without values: those that describe `blocks` and its use, the measurements for the choice of
# paths, and those for event listeners.
_DESCRIBING = ("events", "files", "geometry", "ghosts", "listening", "lost", "profiles", "tags")


def _used(name: str, maps: Mapping[str, Any]) -> int:
    if name == "blocks" and "tags" in maps:
        return sum(1 for _ in maps["tags"].slots())
    return len(maps[name])


class Occupancy:
    """Usage of many mounts' maps. It is counted again when it is older than *keep_s* seconds."""

    def __init__(self, keep_s: float = 5.0) -> None:
        self._keep_s = keep_s
        self._known: dict[tuple[int, int], tuple[float, tuple[MapUsage, ...]]] = {}

    def of(self, sample: Sample) -> tuple[MapUsage, ...]:
        """Return the usage of the maps of the mount that *sample* belongs to."""
        if sample.state != "attached":
            return ()
        key = (sample.connection, sample.enable_seq)
        counted, known = self._known.get(key, (-self._keep_s, ()))
        if time.monotonic() - counted >= self._keep_s:
            known = usage(sample.connection)
            self._known[key] = (time.monotonic(), known)
        return known
