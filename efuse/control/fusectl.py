# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the kernel's own FUSE shows of each connection: the file system ``fusectl``."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FUSECTL", "fuse_connections", "fuse_waiting"]

FUSECTL = Path("/sys/fs/fuse/connections")


def fuse_connections(*, root: Path = FUSECTL) -> tuple[int, ...]:
    """Return the numbers of all connections that are not eFuse's; none if it is not mounted."""
    try:
        names = [path.name for path in root.iterdir()]
    except OSError:
        return ()
    return tuple(sorted(int(name) for name in names if name.isdecimal()))


def fuse_waiting(connection: int, *, root: Path = FUSECTL) -> int | None:
    """Return how many requests wait for the daemon or are with it.

    None where the kernel does not say: only the user who has mounted it may read that, and root.
    """
    try:
        return int((root / str(connection) / "waiting").read_text())
    except OSError:
        return None
