# SPDX-License-Identifier: LGPL-2.1-or-later
"""The C example builds without warnings by the command of its README."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = Path(__file__).parents[2] / "docs/examples/passthrough_backing"


def test_make_builds_the_example(tmp_path: Path) -> None:
    subprocess.run(["make", "-s", "-C", _SOURCE, f"OUT={tmp_path}"], check=True)
    done = subprocess.run([tmp_path / "passthrough_backing", "--help"], capture_output=True)
    assert done.returncode == 0 and b"usage" in done.stdout.lower() + done.stderr.lower()
