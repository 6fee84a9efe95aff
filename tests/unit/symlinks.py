# SPDX-License-Identifier: LGPL-2.1-or-later
"""Chains of symbolic links."""

from __future__ import annotations

from pathlib import Path


def link_chain(directory: Path, target: str, number: int) -> list[Path]:
    """Make *number* links, each to the one before it and the first to *target*. Return them."""
    made: list[Path] = []
    for i in range(number):
        link = directory / f"link{i}"
        link.symlink_to(target)
        target = link.name
        made.append(link)
    return made
