# SPDX-License-Identifier: LGPL-2.1-or-later
"""``__all__`` of a module names what other modules use of it, and nothing else.

The packages that have a page in the documentation are left out: all their names are public.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.site.python_pages import PACKAGES

_ROOT = Path(__file__).resolve().parents[2]


def _name(file: Path) -> str:
    parts = file.relative_to(_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


_TREES = {
    _name(file): ast.parse(file.read_text())
    for directory in ("efuse", "tests", "docs")
    for file in (_ROOT / directory).rglob("*.py")
}


def _exported(module: str) -> set[str] | None:
    for node in _TREES[module].body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return None


def _uses(module: str) -> Iterator[tuple[str, str]]:
    """Iterate over (module, name) of all that *module* uses of other modules."""
    modules: dict[str, str] = {}
    tree = _TREES[module]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                modules[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in _TREES:
                    modules[alias.asname or alias.name] = inner
                yield node.module, alias.name

    def module_of(node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return modules.get(node.id)
        if isinstance(node, ast.Attribute):
            outer = module_of(node.value)
            return f"{outer}.{node.attr}" if outer else None
        return None

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (outer := module_of(node.value)) in _TREES:
            yield str(outer), node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A name as monkeypatch.setattr() takes it.
            outer, _, name = node.value.rpartition(".")
            if outer in _TREES and name.isidentifier():
                yield outer, name


def _entry_points() -> Iterator[tuple[str, str]]:
    text = (_ROOT / "pyproject.toml").read_text()
    yield from re.findall(r'= "(efuse[\w.]*):(\w+)"', text)
    for module in _TREES:  # efuse.cli.main imports the commands by their names
        if re.fullmatch(r"efuse\.cli\.[a-z]\w*", module):
            yield module, "cli"


_USED = {(module, use) for module in _TREES for use in _uses(module) if use[0] != module}
_BY_ALL = {use for _, use in _USED} | set(_entry_points())
_BY_EFUSE = {use for module, use in _USED if module.startswith("efuse")}
_MODULES = [
    module
    for module in sorted(_TREES)
    if re.match(r"efuse(\.|$)", module) and _exported(module) and module not in ("efuse", *PACKAGES)
]


def test_modules_are_found() -> None:
    assert {"efuse.btf", "efuse.cli.stat", "efuse.bpf.libbpf"} <= set(_MODULES)
    assert ("efuse.bpf.libbpf", "map_create") in _BY_EFUSE


@pytest.mark.parametrize("module", _MODULES)
def test_all_names_what_other_modules_use(module: str) -> None:
    exported = _exported(module) or set()
    assert {name for name in exported if (module, name) not in _BY_ALL} == set()
    used = {name for outer, name in _BY_EFUSE if outer == module}
    assert {name for name in used - exported if f"{module}.{name}" not in _TREES} == set()
