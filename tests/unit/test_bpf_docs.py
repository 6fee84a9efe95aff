# SPDX-License-Identifier: LGPL-2.1-or-later
"""The code in docs/writing-a-handler.md equals the example files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from efuse import locations

ROOT = locations.package().parent
DOCUMENT = ROOT / "docs" / "writing-a-handler.md"


def test_code_from_files_is_verbatim() -> None:
    found = re.findall(r"<!-- file: (\S+) -->\n```c\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(found) == 2
    for name, code in found:
        assert code in (ROOT / name).read_text()


def test_python_is_from_the_example() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    example = (ROOT / "docs" / "examples" / "handlers" / "deny_user.py").read_text()
    for line in code.splitlines():
        assert line.strip() in example


@pytest.mark.parametrize("name", sorted(p.name for p in Path(ROOT / "docs").glob("*.md")))
def test_kfuncs_in_the_documents_exist(name: str) -> None:
    header = (locations.data("bpf_programs") / "include" / "efuse.bpf.h").read_text()
    kfuncs = set(re.findall(r"\(\*(\w+)\)\(", header))
    used = set(
        re.findall(
            r"\b(efuse_(?:req|reply|learn|notify|exit)_\w+)\(", (ROOT / "docs" / name).read_text()
        )
    )
    assert used <= kfuncs
