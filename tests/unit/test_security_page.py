# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/security.md: its tests and checks exist, and it has every way into the two modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import sysfs_document
from tests.documents import ROOT

_TEXT = (ROOT / "docs/security.md").read_text()
_TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", _TEXT)))
_CHECKS = sorted(set(re.findall(r"`([\w/.]+\.(?:c|py)): ([\w.]+)`", _TEXT)))
_OURS = [(path, name) for path, name in _CHECKS if not path.startswith(("fs/", "kernel/"))]
_MODULES = ("kernel_patches", "csd")


def _rows() -> list[list[str]]:
    """Return the cells of each row of the page's tables, without the heads of the tables."""
    tables = re.findall(r"^\|.*\n\|[ |-]+\|\n((?:\|.*\n)+)", _TEXT, re.MULTILINE)
    return [
        [cell.strip() for cell in row.strip("|").split("|")]
        for table in tables
        for row in table.splitlines()
    ]


def _sources(module: str) -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / module).rglob("*.[ch]")))


def _python_names(path: Path) -> set[str]:
    """Return the functions and classes of a file, and its methods as ``Class.method``."""
    body = ast.parse(path.read_text()).body
    found = {n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for one in body:
        if isinstance(one, ast.ClassDef):
            found |= {f"{one.name}.{n.name}" for n in one.body if isinstance(n, ast.FunctionDef)}
    return found


def _is_defined(name: str, text: str) -> bool:
    """Tell whether the C function *name* has a body in *text*."""
    return bool(re.search(rf"^\w[^;\n]*\b{name}\([^;{{]*\)\n\{{", text, re.MULTILINE))


@pytest.mark.parametrize(("path", "name"), _TESTS)
def test_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in _python_names(ROOT / path)


@pytest.mark.parametrize(("path", "name"), _OURS)
def test_check_that_is_named_exists(path: str, name: str) -> None:
    if path.endswith(".py"):
        assert name in _python_names(ROOT / path)
    else:
        assert _is_defined(name, (ROOT / path).read_text())


def test_declaration_of_a_function_is_no_definition() -> None:
    assert _is_defined("f", "static int f(int a,\n\t     int b)\n{\n")
    for text in ("int f(int a);\n", "\treturn f(a)\n{\n", "int ff(int a)\n{\n", "\tf(a);\n}\n"):
        assert not _is_defined("f", text)


def test_each_row_names_a_test() -> None:
    rows = _rows()
    assert len(rows) > 70
    assert [row for row in rows if not re.fullmatch(r"(`tests/[^`]+`(, )?)+", row[-1])] == []


def test_each_refusal_names_its_check() -> None:
    """A table has "may not" in a column of its own, or says why in the next one."""
    wrong = []
    for row in _rows():
        refusal = row[2] if len(row) == 4 else row[0]
        reason = refusal if len(row) == 4 else row[1]
        if refusal and not any(f"`{path}: {name}`" in reason for path, name in _CHECKS):
            wrong.append(row)
    assert wrong == []


@pytest.mark.parametrize("module", _MODULES)
def test_each_ioctl_is_on_the_page(module: str) -> None:
    (header,) = (ROOT / module / "include/uapi").rglob("*.h")
    ioctls = re.findall(r"#define (\w+_IOC_\w+)\s+_IO[RW]*\(", header.read_text())
    assert len(ioctls) >= 3
    assert [name for name in ioctls if f"`{name}`" not in _TEXT] == []


def test_each_device_node_is_on_the_page() -> None:
    patch = (ROOT / "kernel_patches/6.12/0005-fuse-identity.patch").read_text()
    nodes = re.findall(r'MISC_DYNAMIC_MINOR,\n[+ ]?\s*\.name\s*= "(\w+)"', patch + _sources("csd"))
    nodes += re.findall(r'snprintf\(\w+->disk_name, [^;]*"(\w+)%d"', _sources("csd"))
    assert sorted(nodes) == ["csd", "csd", "efuse"]
    for node in ("efuse", "csd", "csdN", "fuse"):
        assert f"`/dev/{node}`" in _TEXT


def test_mode_of_the_device_nodes_is_as_on_the_page() -> None:
    patch = (ROOT / "kernel_patches/6.12/0005-fuse-identity.patch").read_text()
    assert ".mode" not in patch
    assert re.findall(r"\.mode\s*= (0\d+),", _sources("csd")) == ["0666"]
    assert "(mode 0666)" in _TEXT


def test_each_group_of_sysfs_files_is_on_the_page() -> None:
    section = _TEXT.partition("\n## sysfs and configfs\n")[2].partition("\n## ")[0]
    files = sysfs_document.files("A connection").values()
    writable = [file.name for file in files if file.mode & 0o200]
    assert len(writable) > 15
    assert [name for name in writable if f"`{name}`" not in section] == []
    hidden = [file.name for file in files if not file.mode & 0o222 and file.mode != 0o444]
    assert hidden == ["epoch"]
    assert "`epoch` (0400)" in section
    for directory in ("stats", "paths", "channels"):
        assert f"`{directory}/`" in section
    for root in ("/sys/fs/efuse/version", "/sys/kernel/config/csd"):
        assert f"`{root}`" in section
    assert {file.mode for file in sysfs_document.files("The module").values()} == {0o444}
    for group in ("Paths", "Channels", "Counters"):
        assert sysfs_document.mode(group) == 0o444


def test_modules_have_no_parameters_of_their_own() -> None:
    assert not re.search(r"\bmodule_param", _sources("kernel_patches") + _sources("csd"))


@pytest.mark.parametrize("module", _MODULES)
def test_each_struct_ops_type_is_on_the_page(module: str) -> None:
    types = re.findall(r"register_bpf_struct_ops\(&\w+, (\w+)\)", _sources(module))
    assert types
    assert [name for name in types if f"`{name}`" not in _TEXT] == []
