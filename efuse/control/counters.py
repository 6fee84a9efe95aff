# SPDX-License-Identifier: LGPL-2.1-or-later
"""Interpret sysfs files that have a line for each counter: its name, a space, and its value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from efuse.errors import ControlError

__all__ = ["lines", "numbers"]


def lines(text: str) -> dict[str, str]:
    """Return the value of each line of *text* by name."""
    return {name: value for name, _, value in (line.partition(" ") for line in text.splitlines())}


def numbers(path: Path, values: Mapping[str, str], names: Iterable[str]) -> dict[str, int]:
    """Return some counters as numbers, by name.

    :param path: the file.
    :param values: its `lines`.
    :param names: names of the counters.
    :raises ControlError: the file lacks a counter, or its value is not a number.
    """
    found = {}
    for name in names:
        value = values.get(name, "")
        if not (value.isascii() and value.isdigit()):
            raise ControlError(
                f"{path} has no number {name}",
                hint="the module and this package may differ in version: efuse doctor",
            )
        found[name] = int(value)
    return found
