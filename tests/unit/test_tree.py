# SPDX-License-Identifier: LGPL-2.1-or-later
"""Checks of all files of the repository, and of its front page."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.repository import ROOT, files

_KERNEL_SIDE = ("bpf_programs/", "csd/", "kernel_patches/", "tests/debug/faults/")
# Texts by other authors, and formats that have no comments.
_WITHOUT_LICENCE = re.compile(
    r"^LICENSES/|\.(json|png)$|/py\.typed$|\.patch$|/series$|^tests/data/"
)


def _head(name: str) -> str:
    with (ROOT / name).open(errors="replace") as file:
        return "".join(line for _, line in zip(range(3), file, strict=False))


def test_every_file_names_its_licence() -> None:
    missing = [
        name
        for name in files()
        if not _WITHOUT_LICENCE.search(name) and "SPDX-License-Identifier: " not in _head(name)
    ]
    assert missing == []


def test_kernel_side_c_is_gpl_and_python_is_lgpl() -> None:
    wrong = []
    for name in files():
        if name.endswith((".c", ".h")) and name.startswith(_KERNEL_SIDE):
            wanted = "GPL-2.0"
        elif name.endswith(".py"):
            wanted = "LGPL-2.1-or-later"
        else:
            continue
        if f"SPDX-License-Identifier: {wanted}" not in _head(name):
            wrong.append(name)
    assert wrong == []


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "scripts").iterdir()))
def test_script_parses_and_is_executable(name: str) -> None:
    script = ROOT / "scripts" / name
    # Scripts with the suffix .sh are sourced by others.
    assert os.access(script, os.X_OK) == (script.suffix != ".sh")
    with script.open() as file:
        first = file.readline()
    if "bash" in first:
        subprocess.run(["bash", "-n", script], check=True)


def test_make_help_lists_the_front_door() -> None:
    result = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = {line.split()[0] for line in result.stdout.splitlines()}
    assert {"help", "setup", "check", "test", "demo", "lint-kernel", "test-perf"} <= listed


def test_ci_calls_make_test() -> None:
    assert "make test" in (ROOT / ".ci/run").read_text()
