# SPDX-License-Identifier: LGPL-2.1-or-later
"""What inodes are called, as far as the requests that were seen tell. Pure: no system call."""

from __future__ import annotations

import os

from efuse.tracing.request import Request

__all__ = ["Names"]

_ROOT = 1
_DEEPEST = 64


class Names:
    """Learns names from requests, in their order, and forgets none: the last one counts.

    Only what a LOOKUP or the making of an entry has told is known: an inode that the kernel knew
    before, or that came with a READDIRPLUS, has no name here.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, bytes], int] = {}
        self._of: dict[int, tuple[int, bytes]] = {}

    def learn(self, request: Request) -> None:
        """Take from *request* what it tells of names."""
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
        """Return the inode under a name, or None."""
        return self._entries.get((parent, name))

    def path(self, nodeid: int) -> str:
        """Return the path of an inode in its mount, ``/`` its root; empty where nothing is known.

        A directory whose own name is not known is left out: ``…/name``.
        """
        parts: list[str] = []
        while nodeid != _ROOT and len(parts) < _DEEPEST:
            if nodeid not in self._of:
                return "…/" + "/".join(reversed(parts)) if parts else ""
            nodeid, name = self._of[nodeid]
            parts.append(os.fsdecode(name))
        return "/" + "/".join(reversed(parts))

    def shown(self, request: Request) -> str:
        """Return what *request* is about: its own name or names, else the path of its inode."""
        own = [os.fsdecode(name) for name in request.names]
        if request.opcode in ("getxattr", "setxattr", "removexattr"):
            return f"{self.path(request.nodeid)} {own[0] if own else ''}".strip()
        return " -> ".join(own) or self.path(request.nodeid)

    def _put(self, where: tuple[int, bytes], nodeid: int) -> None:
        self._entries[where] = nodeid
        self._of[nodeid] = where
