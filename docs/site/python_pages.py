# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make the pages of the Python package from the docstrings of its public names."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

from docs.site.links import toctree

__all__ = ["PACKAGES", "pages"]

PACKAGES = {
    "efuse.fs": "File systems",
    "efuse.bpf": "Handlers and maps",
    "efuse.control": "Mounts and their attributes",
    "efuse.stats": "Counters",
    "efuse.tracing": "Requests one by one",
    "efuse.functions": "Storage functions",
    "efuse.csd": "Emulated devices",
    "efuse.bench": "Benchmarks",
    "efuse.exporter": "Prometheus",
    "efuse.errors": "Errors",
}
"""The titles of the public packages, in the order of the pages."""

_HEAD = """\
# The Python package

All public names, with their docstrings. `import efuse` provides `Operations`, `Options`,
`Passthrough`, `mount` and `serve` of [efuse.fs](python/efuse.fs.md), `PublishedEntry` of
[efuse.bpf](python/efuse.bpf.md), and `EfuseError`.
"""


def pages() -> Iterator[tuple[str, str]]:
    """Iterate over the names and texts of the pages."""
    yield "python.md", _HEAD + toctree(f"python/{name}" for name in PACKAGES)
    for name, title in PACKAGES.items():
        directives = [f".. automodule:: {name}", "   :members:", "   :imported-members:", ""]
        for constant in _constants(importlib.import_module(name)):
            directives += [f".. autodata:: {constant}", "   :no-value:", ""]
        lines = [f"# {title}: `{name}`", "", "```{eval-rst}", *directives, "```", ""]
        yield f"python/{name}.md", "\n".join(lines)


def _constants(module: ModuleType) -> Iterator[str]:
    """Iterate over the constants that *module* imports, by the module that has their docstring."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                value = getattr(module, alias.name)
                if alias.name in module.__all__ and not callable(value):
                    yield f"{node.module}.{alias.name}"
