# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bind mounts that the tests make and change."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

__all__ = ["bind", "remount"]


def bind(mount: Callable[..., None], what: Path, where: Path, options: str = "") -> None:
    """Show *what* as *where*, too; the fixture *mount* ends it."""
    mount("--bind", what, where)
    subprocess.run(["mount", "--make-private", where], check=True)
    if options:
        remount(where, options)


def remount(where: Path, options: str) -> None:
    """Change the options of one mount, not of its file system."""
    subprocess.run(["mount", "-o", f"remount,bind,{options}", where], check=True)
