# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files of the repository, without those that are built or ignored."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["ROOT", "files"]

ROOT = Path(__file__).resolve().parents[1]


def files() -> list[str]:
    """Return the paths of all files that git has or would add, relative to the repository."""
    listing = subprocess.run(
        [
            "git",
            "-c",
            f"safe.directory={ROOT}",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(name for name in set(listing.stdout.splitlines()) if (ROOT / name).is_file())
