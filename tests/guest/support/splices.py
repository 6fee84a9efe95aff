# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls that splice bytes into a file."""

from __future__ import annotations

import os
from pathlib import Path

from tests.guest.support.file_data import BLOCK, fill

DATA = fill("s", 4 * BLOCK)


def spliced(pipe: int, fd: int) -> int:
    """Splice `DATA` from the pipe, which stays locked meanwhile."""
    return os.splice(pipe, fd, len(DATA), offset_dst=0)


def splice(fd: int, path: Path) -> int:
    """Splice `DATA` from a new pipe."""
    out, into = os.pipe()
    try:
        os.write(into, DATA)
        return spliced(out, fd)
    finally:
        os.close(out)
        os.close(into)


def sendfile(fd: int, path: Path) -> int:
    """Send `DATA` from the file *path*, which the kernel does by a pipe of its own."""
    path.write_bytes(DATA)
    with path.open("rb") as source:
        return os.sendfile(fd, source.fileno(), 0, len(DATA))
