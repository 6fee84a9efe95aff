# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which requests somebody wants to see. Pure: no system call."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from efuse.tracing.request import Request

__all__ = ["Filter"]


@dataclass(frozen=True)
class Filter:
    """What a request has to be; what is empty or None does not matter.

    :param opcodes: one of these.
    :param nodeids: its inode is one of these.
    :param name: a pattern of what it is about (`Names.shown`), or of the end of that behind a
        ``/``.
    :param paths: who answered it.
    :param pids: its caller's process or thread.
    :param slower_than_ns: it took longer than this.
    :param errors: it failed.
    """

    opcodes: frozenset[str] = frozenset()
    nodeids: frozenset[int] = frozenset()
    name: str = ""
    paths: frozenset[str] = frozenset()
    pids: frozenset[int] = frozenset()
    slower_than_ns: int | None = None
    errors: bool = False

    def wants(self, request: Request, shown: str) -> bool:
        """Whether *request*, which is about *shown*, is wanted."""
        return (
            (not self.opcodes or request.opcode in self.opcodes)
            and (not self.nodeids or request.nodeid in self.nodeids)
            and (not self.paths or request.path in self.paths)
            and (not self.pids or request.pid in self.pids or request.thread in self.pids)
            and (self.slower_than_ns is None or (request.ns or 0) > self.slower_than_ns)
            and (not self.errors or request.error != "")
            and (not self.name or self._is_named(shown))
        )

    def _is_named(self, shown: str) -> bool:
        last = shown.rsplit("/", 1)[-1]
        return any(fnmatchcase(text, self.name) for text in (shown, last))
