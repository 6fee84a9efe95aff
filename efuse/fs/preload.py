# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shared object that `efuse run` preloads."""

from __future__ import annotations

from pathlib import Path

from efuse.libefuse import library

__all__ = ["preload_library"]


def preload_library() -> Path:
    """Return the shim's shared object.

    :raises EfuseError: it cannot be built.
    """
    return library("libefuse-preload.so")
