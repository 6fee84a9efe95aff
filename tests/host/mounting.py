# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make and change bind mounts for the tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

__all__ = ["bind", "remount"]


def bind(mount: Callable[..., None], what: Path, where: Path, options: str = "") -> None:
    """Bind *what* to *where*. The fixture *mount* unmounts it after the test."""
    mount("--bind", what, where)
    subprocess.run(["mount", "--make-private", where], check=True)
    if options:
        remount(where, options)


def remount(where: Path, options: str) -> None:
    """Change the options of one mount, but not those of its file system."""
    subprocess.run(["mount", "-o", f"remount,bind,{options}", where], check=True)
