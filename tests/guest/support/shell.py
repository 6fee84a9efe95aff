# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run commands in the guest."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


def run(*command: str | os.PathLike[str], check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command without standard input, and return its output."""
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if check and result.returncode != 0:
        pytest.fail(f"{command} failed with {result.returncode}: {result.stderr}{result.stdout}")
    return result


def load_file_system(name: str) -> None:
    """Load the module of a file system, unless it is loaded or built in."""
    if name not in Path("/proc/filesystems").read_text().split():
        run("modprobe", name)
