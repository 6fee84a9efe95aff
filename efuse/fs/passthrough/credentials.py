# SPDX-License-Identifier: LGPL-2.1-or-later
"""Acting on the lower file system as the process that made the request."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pyfuse3

from efuse.fs.passthrough.syscalls import set_fs_groups, set_fs_ids

__all__ = ["Credentials"]


class Credentials:
    """Switches this thread's file-system identity; nothing may be awaited meanwhile.

    With a file-system uid other than 0 the kernel drops the thread's file capabilities, so the
    lower file system checks permissions as it does for the caller, who becomes the owner of what
    is created. Without root nothing is switched: then only the mount's owner has access anyway.
    """

    def __init__(self) -> None:
        self._own = (os.geteuid(), os.getegid())
        self._acting = self._own
        self._groups = os.getgroups()
        self._root = self._own[0] == 0

    @contextlib.contextmanager
    def of(self, ctx: pyfuse3.RequestContext | None) -> Iterator[None]:
        """Act as the caller of *ctx* within the block.

        :raises PermissionError: the identity cannot be taken.
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
    """Return the caller's supplementary groups; none when it is in another pid namespace."""
    if pid == 0:
        return []
    try:
        return sorted(pyfuse3.get_sup_groups(pid))
    except (FileNotFoundError, ProcessLookupError):
        return []
