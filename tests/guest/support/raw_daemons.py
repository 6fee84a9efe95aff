# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the daemon without any library, raw_daemon.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

TEXT = "what the daemon has\n"


def raw_daemon(directory: Path) -> Path:
    """Build the daemon below a directory, and return its path."""
    program = directory / "raw_daemon"
    source = Path(__file__).parent / "raw_daemon.c"
    words = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-static", "-o", program, source]
    subprocess.run(words, check=True)
    return program
