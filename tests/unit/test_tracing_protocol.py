# SPDX-License-Identifier: LGPL-2.1-or-later
"""The members of FUSE's structs, compared with <linux/fuse.h> by the compiler."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from efuse.tracing import protocol
from efuse.tracing.protocol import Field

_HEAD = """
#include <stddef.h>
#include <stdio.h>
#include <linux/fuse.h>

#define SHOW(s, m) printf("%zu %zu\\n", offsetof(struct s, m), sizeof(((struct s *)0)->m))

int main(void)
{
"""


def _fields() -> Iterator[Field]:
    for name in protocol.__all__:
        value = getattr(protocol, name)
        if isinstance(value, Field):
            yield value
        elif isinstance(value, Mapping):
            yield from value.values()


def test_fields_are_those_of_the_kernel_header(tmp_path: Path) -> None:
    fields = sorted(set(_fields()))
    assert len(fields) > 20
    shown = "".join(f"\tSHOW(fuse_{field.struct}, {field.member});\n" for field in fields)
    rights = '\tprintf("%d\\n", FATTR_MODE | FATTR_UID | FATTR_GID);\n'
    program = f"{_HEAD}{shown}{rights}\treturn 0;\n}}\n"
    run = subprocess.run(
        ["sh", "-ec", "gcc -x c -o prog - && ./prog"],
        input=program,
        text=True,
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    *found, of_rights = run.stdout.splitlines()
    assert found == [f"{field.offset} {field.size}" for field in fields]
    assert int(of_rights) == protocol.FATTR_RIGHTS


def test_number_of_a_struct_that_is_cut_off_is_none() -> None:
    field = Field("read_in", "size", 16, 4)
    assert field.number(bytes(16) + b"\1\2\0\0") == 0x201
    assert field.number(bytes(16) + b"\1\2\0") is None
