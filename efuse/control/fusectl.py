# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read ``fusectl``, the file system in which the kernel's own FUSE shows its connections."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FUSECTL", "fuse_connections", "fuse_waiting"]

FUSECTL = Path("/sys/fs/fuse/connections")


def fuse_connections(*, root: Path = FUSECTL) -> tuple[int, ...]:
    """Return the sorted numbers of plain FUSE connections; none if fusectl is not mounted."""
    try:
        names = [path.name for path in root.iterdir()]
    except OSError:
        return ()
    return tuple(sorted(int(name) for name in names if name.isdecimal()))


def fuse_waiting(connection: int, *, root: Path = FUSECTL) -> int | None:
    """Return how many requests wait for the daemon or are being answered by it.

    None if the file cannot be read: the kernel shows it only to root and to the user who mounted.
    """
    try:
        return int((root / str(connection) / "waiting").read_text())
    except OSError:
        return None
