# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which modules of the package import which: click only below efuse.cli, and none in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]


def _name(file: Path) -> str:
    parts = file.relative_to(_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


_TREES = {_name(file): ast.parse(file.read_text()) for file in (_ROOT / "efuse").rglob("*.py")}


def _imported(module: str) -> Iterator[str]:
    """Iterate over the modules that a module imports, at any place in its text."""
    for node in ast.walk(_TREES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{module} has a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in _TREES else node.module


def test_imports_are_found() -> None:
    assert "click" in set(_imported("efuse.cli.csd"))
    assert {"efuse.functions", "efuse.cli._csd_run"} <= set(_imported("efuse.cli.csd"))


def test_click_is_imported_by_the_command_line_only() -> None:
    wrong = [
        module
        for module in _TREES
        if not module.startswith("efuse.cli")
        and any(name.partition(".")[0] == "click" for name in _imported(module))
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports within functions and for type checkers count, too."""
    graph = {
        module: {name for name in _imported(module) if name in _TREES and name != module}
        for module in _TREES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
