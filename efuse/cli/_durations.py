# SPDX-License-Identifier: LGPL-2.1-or-later
"""Durations as a person types them: ``250us``, ``1.5ms``, ``2s``."""

from __future__ import annotations

import re

import click

__all__ = ["DURATION"]

_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


class _Duration(click.ParamType[int]):
    """A number with a unit of time; the value is in nanoseconds."""

    name = "time"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(ns|us|ms|s)", value)
        if not match:
            self.fail(f"{value!r} is not a time: give a number and ns, us, ms or s", param, ctx)
        return round(float(match[1]) * _UNITS[match[2]])


DURATION = _Duration()
