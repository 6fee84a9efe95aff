# SPDX-License-Identifier: LGPL-2.1-or-later
"""Act on the lower file system as the process that made the request."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pyfuse3

from efuse.fs.passthrough.syscalls import set_fs_groups, set_fs_ids

__all__ = ["Credentials"]


class Credentials:
    """Switch the file-system uid, gid and groups of this thread. Await nothing meanwhile.

    With a file-system uid other than 0 the kernel drops the thread's file capabilities. So the
    lower file system checks permissions as for the caller, and new files belong to the caller. If
    the daemon is not root, nothing is switched: only the owner of the mount has access then.
    """

    def __init__(self) -> None:
        self._own = (os.geteuid(), os.getegid())
        self._acting = self._own
        self._groups = os.getgroups()
        self._root = self._own[0] == 0

    @contextlib.contextmanager
    def of(self, ctx: pyfuse3.RequestContext | None) -> Iterator[None]:
        """Act as the caller of *ctx* within the block.

        :raises PermissionError: the thread cannot take the uid and gid.
        """
        if ctx is None or not self._root or (ctx.uid, ctx.gid) == self._own:
            yield
            return
        set_fs_groups(_groups_of(ctx.pid))
        try:
            with self._act(ctx.uid, ctx.gid):
                yield
        finally:
            set_fs_groups(self._groups)

    @contextlib.contextmanager
    def of_daemon(self) -> Iterator[None]:
        """Act as the daemon itself again, within a block of :meth:`of`."""
        with self._act(*self._own):
            yield

    @contextlib.contextmanager
    def _act(self, uid: int, gid: int) -> Iterator[None]:
        before = self._acting
        if (uid, gid) == before:
            yield
            return
        try:
            set_fs_ids(uid, gid)
            self._acting = (uid, gid)
            yield
        finally:
            set_fs_ids(*before)
            self._acting = before


def _groups_of(pid: int) -> list[int]:
    """Return the supplementary groups of the caller; empty if it is in another PID namespace."""
    if pid == 0:
        return []
    try:
        return sorted(pyfuse3.get_sup_groups(pid))
    except (FileNotFoundError, ProcessLookupError):
        return []
