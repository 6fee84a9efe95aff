# SPDX-License-Identifier: LGPL-2.1-or-later
"""The heading of a report: machine, versions and settings."""

from __future__ import annotations

from typing import Any

__all__ = ["heading"]

CLOCKS = {
    "time": "time: a guest under emulation gives ratios, not times",
    "instructions": "instructions: 1 ns is one instruction, and waiting costs nothing",
}
"""What the times of each clock mean, by the clock's name."""

_SETTINGS = ("workloads", "systems", "daemon", "rounds", "scale", "lower")


def heading(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the heading as pairs of name and text, without what the report does not contain."""
    machine, settings = report["machine"], report["settings"]
    clock = str(settings.get("clock", ""))
    pairs = [
        ("clock", CLOCKS.get(clock, clock)),
        ("machine", _machine(machine)),
        ("kernel", report["kernel"]),
        ("versions", ", ".join(f"{name} {v}" for name, v in report["versions"].items())),
        *((name, _words(settings.get(name))) for name in _SETTINGS),
    ]
    return [(name, text) for name, text in pairs if text]


def _machine(machine: dict[str, Any]) -> str:
    parts = [
        "a guest" if machine.get("guest") else "",
        str(machine.get("cpu", "")),
        f"{machine['cpus']} CPU{'s' * (machine['cpus'] != 1)}" if machine.get("cpus") else "",
        f"{machine['memory_bytes'] / 2**30:.1f} GiB" if machine.get("memory_bytes") else "",
        str(machine.get("architecture", "")),
    ]
    return ", ".join(part for part in parts if part)


def _words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(word) for word in value)
    return "" if value is None else str(value)
