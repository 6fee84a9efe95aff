# SPDX-License-Identifier: LGPL-2.1-or-later
"""Select requests of a trace. Pure: no system calls."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from efuse.tracing.request import Request

__all__ = ["Filter"]


@dataclass(frozen=True)
class Filter:
    """Conditions for a request. A condition that is empty, None or False always holds.

    :param opcodes: names of opcodes; the request has one of them.
    :param nodeids: nodeids; the request is about one of them.
    :param name: shell pattern that matches what the request is about (`Names.shown`), or its last
        component after a ``/``.
    :param answered_by: one of these answered the request (`efuse.tracing.ANSWERED_BY`).
    :param pids: the process or the thread of the caller has one of these ids.
    :param slower_than_ns: the request took longer than this, in ns.
    :param errors: the request failed.
    """

    opcodes: frozenset[str] = frozenset()
    nodeids: frozenset[int] = frozenset()
    name: str = ""
    answered_by: frozenset[str] = frozenset()
    pids: frozenset[int] = frozenset()
    slower_than_ns: int | None = None
    errors: bool = False

    def wants(self, request: Request, shown: str) -> bool:
        """Return whether *request*, which is about *shown*, meets all conditions."""
        return (
            (not self.opcodes or request.opcode in self.opcodes)
            and (not self.nodeids or request.nodeid in self.nodeids)
            and (not self.answered_by or request.answered_by in self.answered_by)
            and (not self.pids or request.pid in self.pids or request.thread in self.pids)
            and (self.slower_than_ns is None or (request.ns or 0) > self.slower_than_ns)
            and (not self.errors or request.error != "")
            and (not self.name or self._is_named(shown))
        )

    def _is_named(self, shown: str) -> bool:
        last = shown.rsplit("/", 1)[-1]
        return any(fnmatchcase(text, self.name) for text in (shown, last))
