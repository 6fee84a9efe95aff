# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sizes as a person types them: ``4096``, ``64K``, ``8M``, ``2G``."""

from __future__ import annotations

import re

import click
from click.shell_completion import CompletionItem

__all__ = ["SIZE", "parse_size"]

_USUAL = ("0", "4K", "32K", "128K", "1M", "8M", "64M", "512M", "2G")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_size(text: str) -> int:
    """Convert *text* to bytes: a number, optionally with K, M or G for powers of 1024.

    :raises ValueError: *text* is not a size.
    """
    found = re.fullmatch(r"([0-9]+)([kmg]?)(?:i?b)?", text.strip().lower())
    if not found:
        raise ValueError(f"{text!r} is not a size: write a number of bytes, or one with K, M or G")
    return int(found[1]) * _UNITS[found[2]]


class _Size(click.ParamType[int]):
    """A size in bytes."""

    name = "size"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(size) for size in _USUAL if size.startswith(incomplete)]


SIZE = _Size()
