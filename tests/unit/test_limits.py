# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/limits.md: the tests that it names exist, and its numbers equal those of the code."""

from __future__ import annotations

import ast
import re

import pytest

from efuse import locations
from efuse.bpf.compile import builtin
from tests.documents import ROOT
from tests.sysfs_document import files

_TEXT = (ROOT / "docs/limits.md").read_text()
_NAMED = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", _TEXT)
_LIMITS = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", _TEXT, re.MULTILINE))
_UAPI = (locations.data("kernel_patches") / "include/uapi/linux/efuse.h").read_text()
_KERNEL = "\n".join(
    path.read_text() for path in sorted((locations.data("kernel_patches") / "src").rglob("*.[ch]"))
)


@pytest.mark.parametrize(("name", "test"), _NAMED)
def test_tests_that_are_named_exist(name: str, test: str) -> None:
    path = ROOT / name if name.startswith("tests/") else ROOT / "tests/guest" / name
    tree = ast.parse(path.read_text())
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert test in found if test else any(one.startswith("test_") for one in found)


def _number(limit: str) -> int:
    found = re.match(r"\d+", _LIMITS[limit])
    assert found is not None, limit
    return int(found[0])


def _defined(name: str) -> int:
    found = re.search(rf"#define {name}\s+(\d+)", _UAPI + _KERNEL)
    assert found is not None, name
    return int(found[1])


def test_sizes_are_those_of_the_headers() -> None:
    assert _number("a name") == _defined("EFUSE_NAME_LEN") - 1
    kept = (
        "a value of an extended attribute, a list of them, or a symbolic link's target that is kept"
    )
    assert _number(kept) == _defined("EFUSE_BLOB_LEN")
    assert _number("the name of a set") == _defined("EFUSE_OPS_NAME_LEN") - 1
    assert _number("slots of a channel") == _defined("EFUSE_MAX_SLOTS")
    gaps = "gaps of a partly cached READ that are asked for alone"
    assert _number(gaps) == _defined("EFUSE_MAX_GAPS")
    assert _number("a READ or WRITE in one piece") << 20 == _defined("EFUSE_MAX_PAGES") * 4096


def test_sizes_are_those_of_sysfs() -> None:
    attributes = files("A connection")
    most = attributes["paths/max_readdir"].range.split(" to ")[1].split(",")[0]
    assert _number("a READDIR or READDIRPLUS") == int(most)
    most = attributes["paths/max_request"].range.split(" to ")[1].split(",")[0]
    assert _number("a READ or WRITE in one piece") << 20 == int(most)


def test_capacities_are_those_of_the_programs() -> None:
    maps = builtin().maps
    for row, names in (
        ("`entries`, `attrs`", ("entries", "attrs")),
        ("`grants`", ("grants",)),
        ("`blobs`", ("blobs",)),
        ("`volumes`", ("volumes",)),
        ("`blocks`, of 4 KiB", ("blocks",)),
    ):
        assert {maps[name].max_entries for name in names} == {_number(row)}
