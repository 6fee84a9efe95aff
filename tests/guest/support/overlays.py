# SPDX-License-Identifier: LGPL-2.1-or-later
"""An overlay of two directories."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.guest.support.shell import load_file_system, run


@contextlib.contextmanager
def overlaid(root: Path) -> Iterator[Path]:
    """Mount an overlay of the new directories ``below`` and ``above`` of *root*; yield its root."""
    load_file_system("overlay")
    for name in ("below", "above", "work", "both"):
        (root / name).mkdir()
    layers = f"lowerdir={root}/below,upperdir={root}/above,workdir={root}/work"
    run("mount", "-t", "overlay", "-o", layers, "overlay", root / "both")
    try:
        yield root / "both"
    finally:
        run("umount", "--lazy", root / "both")
