# SPDX-License-Identifier: LGPL-2.1-or-later
"""Learn the names of inodes from traced requests. Pure: no system calls."""

from __future__ import annotations

import os

from efuse.tracing.request import Request

__all__ = ["Names"]

_ROOT = 1
_DEEPEST = 64


class Names:
    """Names of inodes, learned from requests in order. All are kept; the latest one counts.

    Names come only from LOOKUP and from requests that create an entry. An inode that the kernel
    knew before the trace, or that it got from a READDIRPLUS, has no name here.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, bytes], int] = {}
        self._of: dict[int, tuple[int, bytes]] = {}

    def learn(self, request: Request) -> None:
        """Learn the names in *request*."""
        if request.ret < 0 or not request.names:
            return
        where = (request.nodeid, request.names[0])
        if request.child is not None:
            self._put(where, request.child)
        elif request.opcode in ("unlink", "rmdir", "lookup"):
            self._entries.pop(where, None)
        elif request.opcode in ("rename", "rename2") and len(request.names) > 1:
            moved = self._entries.pop(where, None)
            if moved is not None:
                self._put((request.other or request.nodeid, request.names[1]), moved)

    def child(self, parent: int, name: bytes) -> int | None:
        """Return the nodeid of an entry, or None if it is unknown."""
        return self._entries.get((parent, name))

    def path(self, nodeid: int) -> str:
        """Return the path of an inode below the root of its mount, ``/``; empty if it has no name.

        If the name of a directory in the path is unknown, the path begins with ``…/`` instead.
        """
        parts: list[str] = []
        while nodeid != _ROOT and len(parts) < _DEEPEST:
            if nodeid not in self._of:
                return "…/" + "/".join(reversed(parts)) if parts else ""
            nodeid, name = self._of[nodeid]
            parts.append(os.fsdecode(name))
        return "/" + "/".join(reversed(parts))

    def shown(self, request: Request) -> str:
        """Return what *request* is about: its own name or names, or else the path of its inode."""
        own = [os.fsdecode(name) for name in request.names]
        if request.opcode in ("getxattr", "setxattr", "removexattr"):
            return f"{self.path(request.nodeid)} {own[0] if own else ''}".strip()
        return " -> ".join(own) or self.path(request.nodeid)

    def _put(self, where: tuple[int, bytes], nodeid: int) -> None:
        self._entries[where] = nodeid
        self._of[nodeid] = where
