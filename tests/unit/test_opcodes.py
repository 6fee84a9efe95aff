# SPDX-License-Identifier: LGPL-2.1-or-later
import re
from pathlib import Path

import pytest

from efuse import opcodes

HEADER = Path("/usr/include/linux/fuse.h")


def test_names_and_numbers_are_inverse() -> None:
    assert {opcodes.number(opcodes.name(n)) for n in opcodes.NAMES} == set(opcodes.NAMES)
    assert len(opcodes.NAMES) == len(opcodes.NUMBERS)


def test_number_takes_the_header_spelling() -> None:
    assert opcodes.number("FUSE_COPY_FILE_RANGE") == opcodes.number("copy_file_range") == 47


def test_number_of_no_opcode_fails() -> None:
    with pytest.raises(KeyError):
        opcodes.number("FUSE_NOTHING")


def test_name_of_an_unknown_number_says_the_number() -> None:
    assert opcodes.name(7) == "opcode_7"


def test_numbers_agree_with_the_kernel_header() -> None:
    found = {
        name.lower(): int(value)
        for name, value in re.findall(
            r"^\s*FUSE_(\w+)\s*=\s*(\d+),", HEADER.read_text().split("enum fuse_opcode")[1], re.M
        )
        if int(value) < 4096 and not name.startswith("NOTIFY_")
    }
    assert found.items() <= dict(opcodes.NUMBERS).items()
    assert len(found) > 40
