# SPDX-License-Identifier: LGPL-2.1-or-later
"""Trace the requests of one mount, plain FUSE or eFuse, while a process watches."""

from __future__ import annotations

from efuse.tracing.advice import Advice, Advisor, OpcodeAdvice
from efuse.tracing.filters import Filter
from efuse.tracing.lines import as_json, header, line
from efuse.tracing.names import Names
from efuse.tracing.request import ANSWERED_BY, REASONS, Request
from efuse.tracing.watch import Watch

__all__ = [
    "ANSWERED_BY",
    "REASONS",
    "Advice",
    "Advisor",
    "Filter",
    "Names",
    "OpcodeAdvice",
    "Request",
    "Watch",
    "as_json",
    "header",
    "line",
]
