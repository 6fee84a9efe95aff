# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test files share code through modules that are not test files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a file imports, and what it imports from packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _imported_test_files(path: Path) -> list[str]:
    """Return the test files among the modules that a file imports."""
    names = sorted(set(_imported(ast.parse(path.read_text()))))
    files = [ROOT / name.replace(".", "/") for name in names if name.startswith("tests.")]
    return [
        str(file.relative_to(ROOT))
        for file in files
        if file.name.startswith("test_") and file.with_suffix(".py").is_file()
    ]


@pytest.mark.parametrize("directory", ["guest", "host"])
def test_no_test_file_imports_another_one(directory: str) -> None:
    found = {
        str(path.relative_to(ROOT)): imported
        for path in (ROOT / "tests" / directory).rglob("*.py")
        if (imported := _imported_test_files(path))
    }
    assert found == {}


def test_import_of_a_test_file_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(
        "import tests.unit.test_tree\nfrom tests.unit import test_words\n"
        "from tests.unit.test_documents import named\nfrom tests.documents import test_nothing\n"
    )
    assert _imported_test_files(file) == [
        "tests/unit/test_documents",
        "tests/unit/test_tree",
        "tests/unit/test_words",
    ]
