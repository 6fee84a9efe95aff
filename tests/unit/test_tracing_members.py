# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each member of eFuse's own structs that the tracing programs read exists.

A member is looked up by its name when the programs are loaded: without it `efuse trace` fails.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import efuse

ROOT = Path(efuse.__file__).parent.parent
SOURCES = "".join(p.read_text() for p in sorted((ROOT / "kernel_patches/src").rglob("*.h")))
FIELDS = re.findall(
    r"^FIELD\(\w+, \d+, (\w+), ([\w.]+)\)",
    "".join(p.read_text() for p in sorted((ROOT / "bpf_programs/tracing").glob("*.c"))),
    re.M,
)
OWN = [
    (("efuse_args", member.partition(".")[2]) if member.startswith("efuse.") else (struct, member))
    for struct, member in FIELDS
]


@pytest.mark.parametrize(("struct", "member"), [(s, m) for s, m in OWN if s.startswith("efuse_")])
def test_member_that_the_tracing_programs_read_exists(struct: str, member: str) -> None:
    body = re.search(rf"^struct {struct} \{{(.*?)^\}}", SOURCES, re.M | re.S)
    assert body, struct
    assert re.search(rf"\b{member.partition('.')[0]}(:\d+|\[\d+\])?;", body[1]), member
