# SPDX-License-Identifier: LGPL-2.1-or-later
"""Format numbers as short words for table columns. Pure: no system calls."""

__all__ = ["count", "duration", "share"]


def count(value: float) -> str:
    """Format a rate or a count in at most six characters: ``0.50``, ``12``, ``12.3k``, ``1.2M``."""
    if value == 0:
        return "0"
    if value < 10:
        return f"{value:.2f}".removesuffix(".00")
    for unit, factor in (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        scaled = value / factor
        if scaled < 999.5:
            return f"{scaled:.1f}{unit}" if unit and scaled < 99.95 else f"{scaled:.0f}{unit}"
    return f"{value:.0e}"


def share(value: float | None) -> str:
    """Format a ratio of 0 to 1 as a percentage, None as a dash. Only 0 and 1 give 0% and 100%."""
    if value is None:
        return "-"
    if 0.999 < value < 1:
        return "99.9%"
    if 0 < value < 0.001:
        return "<0.1%"
    return f"{value:.0%}" if value in (0, 1) else f"{value:.1%}"


def duration(ns: float | None) -> str:
    """Format a time in nanoseconds in at most seven characters, None as a dash."""
    if ns is None:
        return "-"
    for unit, factor in (("ns", 1), ("us", 1e3), ("ms", 1e6), ("s", 1e9)):
        scaled = ns / factor
        if scaled < 999.5 or unit == "s":
            return (
                f"{scaled:.1f} {unit}" if unit != "ns" and scaled < 10 else f"{scaled:.0f} {unit}"
            )
    raise AssertionError
