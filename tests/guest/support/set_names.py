# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of program sets that the toolkit does not let through to the kernel."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

__all__ = ["Latin1", "do_not_check"]


class Latin1(str):
    """A name with one byte for each character."""

    def encode(self, encoding: str = "latin-1", errors: str = "strict") -> bytes:
        """Return the name in the given encoding."""
        return super().encode(encoding, errors)


def do_not_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the toolkit pass every name on to the kernel."""
    valid = SimpleNamespace(fullmatch=lambda *_: True)
    monkeypatch.setattr(importlib.import_module("efuse.bpf.load"), "re", valid)
