# SPDX-License-Identifier: LGPL-2.1-or-later
"""Serve FUSE file systems whose requests BPF handlers answer inside the kernel."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that defines it. Modules load on first use, so `import efuse` is cheap.
_EXPORTS: dict[str, str] = {
    "EfuseError": "efuse.errors",
    "Operations": "efuse.fs",
    "Options": "efuse.fs",
    "Passthrough": "efuse.fs",
    "PublishedEntry": "efuse.bpf",
    "mount": "efuse.fs",
    "serve": "efuse.fs",
}

__all__ = [
    "EfuseError",
    "Operations",
    "Options",
    "Passthrough",
    "PublishedEntry",
    "__version__",
    "mount",
    "serve",
]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
