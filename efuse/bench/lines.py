# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines that a run prints when a part of it is done, and how to recognise them."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["cell_line", "copied_line", "done", "round_line"]

_ROUND = re.compile(r"(\S+): (?:round \d+ of \d+|bytes copied): ")
_CELL = re.compile(r"(\S+): \w+ [\d.e+-]+ us(?:, \w+ [\d.e+-]+ us)*")


def round_line(workload: str, number: int, rounds: int, system: str, found: str) -> str:
    """Return the line for a finished round. *number* is 0 for the warm-up round."""
    return f"{workload}: round {number} of {rounds}: {system} {found}"


def copied_line(workload: str, system: str, found: str) -> str:
    """Return the line for the round that counts the bytes copied for a daemon."""
    return f"{workload}: bytes copied: {system} {found}"


def cell_line(name: str, times_us: Mapping[str, float]) -> str:
    """Return the line for a storage function that was measured at all places."""
    return f"{name}: {', '.join(f'{place} {us:.4g} us' for place, us in times_us.items())}"


def done(line: str) -> str | None:
    """Return the workload whose finished part *line* reports, or None for another line."""
    found = _ROUND.match(line) or _CELL.fullmatch(line)
    return found[1] if found else None
