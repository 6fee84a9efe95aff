# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands of the README's first screen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_first_screen_finds_the_same_files_without_the_daemon(
    lower: Path, mountpoint: Path
) -> None:
    for directory in ("a", "b"):
        (lower / directory).mkdir()
        for number in range(20):
            (lower / directory / f"{number}").write_bytes(b"x" * number * 1024)
    done = subprocess.run(
        [ROOT / "docs/examples/first-screen.sh", lower, mountpoint],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The files of 11 to 19 KiB in both directories: plain FUSE, eFuse learning, eFuse warm.
    assert re.findall(r"^(\d+)$", done.stdout, re.MULTILINE) == ["18", "18", "18"]
    opendir = re.search(r"^opendir +(\d+) +(\d+)", done.stdout, re.MULTILINE)
    assert opendir is not None, done.stdout
    # Both walks opened each of the three directories, and the kernel answered those of the second.
    assert (int(opendir[1]), int(opendir[2])) == (6, 3)
    total = re.search(r"^total +\d+ +\d+ +\S+ +\d+ +(\d+)", done.stdout, re.MULTILINE)
    assert total is not None and int(total[1]) < 40
