# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pages of the Python package: what is public, from its docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

from docs.site.links import toctree

__all__ = ["pages"]

# In the order in which a reader comes upon them.
_PACKAGES = {
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

_HEAD = """\
# The Python package

All that is public, from its docstrings. `import efuse` gives `Operations`, `Options`,
`Passthrough`, `PublishedEntry`, `mount` and `serve` of [efuse.fs](python/efuse.fs.md), and
`EfuseError`.
"""


def pages() -> Iterator[tuple[str, str]]:
    """Iterate over the pages' names and texts."""
    yield "python.md", _HEAD + toctree(f"python/{name}" for name in _PACKAGES)
    for name, title in _PACKAGES.items():
        directives = [f".. automodule:: {name}", "   :members:", "   :imported-members:", ""]
        for constant in _constants(importlib.import_module(name)):
            directives += [f".. autodata:: {constant}", "   :no-value:", ""]
        lines = [f"# {title}: `{name}`", "", "```{eval-rst}", *directives, "```", ""]
        yield f"python/{name}.md", "\n".join(lines)


def _constants(module: ModuleType) -> Iterator[str]:
    """Iterate over constants that *module* takes from others: only there are their docstrings."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                value = getattr(module, alias.name)
                if alias.name in module.__all__ and not callable(value):
                    yield f"{node.module}.{alias.name}"
