# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keep the latest rates of each series. Pure values, as in `efuse.stats.model`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from efuse.stats.snapshot import Change

__all__ = ["LENGTH", "History"]

LENGTH = 120
"""How many rates a series keeps."""

Series = tuple[str, int | str, int | str]
"""Name of a series: the kind of thing (``mount``, ``opcode``, ``path``, ``cpu``, ``node`` or
``device``), its owner (number of a connection, or name of a device), and which thing of the owner.
"""


@dataclass(frozen=True, slots=True)
class History:
    """Rates of the latest intervals, oldest first, in requests per second."""

    series: Mapping[Series, tuple[float, ...]] = field(default_factory=dict)

    def of(self, kind: str, owner: int | str, name: int | str = "") -> tuple[float, ...]:
        """Return the rates of one series; empty if it was never active."""
        return self.series.get((kind, owner, name), ())

    def after(self, change: Change) -> History:
        """Return the history with one more rate for each series.

        A series is dropped if its mount or device is gone, or if only zeros are left in it.
        """
        now = dict(_rates(change))
        owners = {key[1] for key in now if key[0] in ("mount", "device")}
        found = {}
        for key in {**self.series, **now}:
            kept = (*self.series.get(key, ())[1 - LENGTH :], now.get(key, 0.0))
            if key[1] in owners and any(kept):
                found[key] = kept
        return History(found)


def _rates(change: Change) -> Iterator[tuple[Series, float]]:
    for mount in change.mounts:
        owner = mount.after.connection
        yield ("mount", owner, ""), mount.total.per_second
        for opcode in mount.opcodes:
            yield ("opcode", owner, opcode.opcode), opcode.per_second
        for path in mount.paths:
            yield ("path", owner, path.path), path.per_second
        for cpu in mount.channels:
            yield ("cpu", owner, cpu.group.cpus[0]), cpu.per_second
        for node in mount.nodes:
            if node.group.node is not None:
                yield ("node", owner, node.group.node), node.per_second
    for device in change.devices:
        yield ("device", device.after.name, ""), device.requests_per_second
