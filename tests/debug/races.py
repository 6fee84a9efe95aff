# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCSAN: find data races from now on, except for those that are known.

The kernel of ``scripts/debug-kernel kcsan`` reports nothing until it is told to. A report is in the
kernel's log, where it fails the guest (efuse.guest.kernel_log).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

_CONTROL = Path("/sys/kernel/debug/kcsan")
_KNOWN = Path(__file__).with_name("races.toml")


@dataclass(frozen=True)
class Known:
    """A function whose races are not reported.

    :ivar function: name of the function, which KCSAN finds at the top of one of the two stacks.
    :ivar reason: why they are not reported.
    """

    function: str
    reason: str


def known() -> list[Known]:
    """Return the functions of ``races.toml``."""
    entries = tomllib.loads(_KNOWN.read_text()).get("race", [])
    return [Known(entry["function"], entry["reason"]) for entry in entries]


def detectable() -> bool:
    """Return whether the running kernel can find data races."""
    return _CONTROL.exists()


def detect() -> None:
    """Begin to report data races, except for the known ones. The modules are loaded.

    :raises OSError: with ENOENT: the kernel has no function of a name in ``races.toml``.
    """
    for each in known():
        _CONTROL.write_text(f"!{each.function}")
    _CONTROL.write_text("on")


def watched() -> int:
    """Return how many accesses the kernel has watched since KCSAN was switched on."""
    fields = dict(
        line.split(":", 1) for line in _CONTROL.read_text().splitlines() if line.count(":") == 1
    )
    return int(fields["setup_watchpoints"])
