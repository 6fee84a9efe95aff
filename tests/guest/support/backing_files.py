# SPDX-License-Identifier: LGPL-2.1-or-later
"""Backing files, and files of a mount that are mapped to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.guest.support.daemons import Mount


def backing(lower: Path, data: bytes, name: str = "backing") -> str:
    """Create a file below the mount; return its path."""
    path = lower / name
    path.write_bytes(data)
    return str(path)


def make(m: Mount, name: str, data: bytes) -> None:
    """Create a file in the daemon's file system, and make the kernel look it up."""
    m.model.create(name, data)
    os.stat(m / name)


def whole(m: Mount, path: str, **extent: object) -> None:
    """Map the file ``f`` to a backing file, from its start to its end."""
    m.call("map_extent", "f", path, os.O_RDWR if extent.get("write") else os.O_RDONLY, **extent)


def map_error(m: Mount, *args: object, **extent: object) -> int | None:
    """Map an extent that is refused; return the errno."""
    with pytest.raises(OSError) as caught:
        m.call("map_extent", *args, **extent)
    return caught.value.errno
