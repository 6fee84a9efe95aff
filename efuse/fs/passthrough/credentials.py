# SPDX-License-Identifier: LGPL-2.1-or-later
"""Act on the lower file system as the process that made the request."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from efuse.fs.passthrough import syscalls
from efuse.fs.passthrough.callers import (
    FILE_CAPABILITIES,
    Caller,
    Callers,
    UnknownCallerError,
)

__all__ = ["UNCHANGED", "Credentials"]

_log = logging.getLogger("efuse.fs")

UNCHANGED = contextlib.nullcontext()
"""A context manager within which the thread keeps its identity. It costs much less than a generator
that yields once, and most requests enter it."""


class _Identity(NamedTuple):
    """What the thread acts with.

    :ivar effective: effective capabilities with uid 0. With another uid the kernel removes the file
        capabilities, and this has no effect.
    """

    uid: int
    gid: int
    effective: int


class Credentials:
    """Switch the file-system uid, gid, groups and capabilities of this thread. Await nothing then.

    So the lower file system checks permissions as for the caller, and new files belong to the
    caller. With a file-system uid other than 0 the kernel removes the thread's file capabilities.
    With uid 0 the thread keeps those that the caller has.

    A caller whose groups are unknown is refused: a group may have fewer rights than all others. If
    the daemon is not root, it cannot act as others, and refuses all users except its own and root.

    :ivar checked_by_kernel: whether the kernel checks the permissions of callers before it sends a
        request. No caller is refused here then, and root keeps the daemon's capabilities.
    """

    def __init__(self) -> None:
        self.checked_by_kernel = False
        self._own = _Identity(os.geteuid(), os.getegid(), syscalls.effective_capabilities(0))
        self._acting = self._own
        self._groups = os.getgroups()
        self._callers = Callers()
        self._has_refused = False

    def of(self, ctx: Caller | None) -> contextlib.AbstractContextManager[None]:
        """Return a context manager within which this thread acts as the caller of *ctx*.

        :raises PermissionError: the thread cannot take the uid and gid, or the caller is refused.
            Entering the context manager may raise it, too.
        """
        if ctx is None:
            return UNCHANGED
        identity = self._identity_of(ctx)
        return UNCHANGED if identity is self._own else self._of_other(ctx, identity)

    @contextlib.contextmanager
    def _of_other(self, ctx: Caller, identity: _Identity) -> Iterator[None]:
        syscalls.set_fs_groups(self._groups_of(ctx, identity))
        try:
            with self._act(identity):
                yield
        finally:
            syscalls.set_fs_groups(self._groups)

    @contextlib.contextmanager
    def of_daemon(self) -> Iterator[None]:
        """Act as the daemon itself again, within a block of :meth:`of`."""
        with self._act(self._own):
            yield

    def close(self) -> None:
        """Close the descriptor by which callers are looked up."""
        self._callers.close()

    def _identity_of(self, ctx: Caller) -> _Identity:
        own = self._own
        if own.uid != 0:
            if not self.checked_by_kernel and ctx.uid not in (0, own.uid):
                self._refuse(ctx, f"the daemon runs as user {own.uid} and cannot act as others")
            return own
        effective = own.effective
        if ctx.uid == 0 and not self.checked_by_kernel:
            effective &= self._callers.capabilities(ctx) | ~FILE_CAPABILITIES
        identity = ctx.uid, ctx.gid, effective
        return own if identity == own else _Identity(*identity)

    def _groups_of(self, ctx: Caller, identity: _Identity) -> list[int]:
        try:
            return self._callers.groups(ctx)
        except UnknownCallerError as unknown:
            is_all_powerful = ctx.uid == 0 and identity.effective == self._own.effective
            if not self.checked_by_kernel and not is_all_powerful:
                self._refuse(ctx, f"the groups are unknown, because {unknown}")
            return []

    def _refuse(self, ctx: Caller, why: str) -> NoReturn:
        if not self._has_refused:
            self._has_refused = True
            _log.warning("user %d is refused (EACCES): %s", ctx.uid, why)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    @contextlib.contextmanager
    def _act(self, identity: _Identity) -> Iterator[None]:
        before = self._acting
        if identity == before:
            yield
            return
        try:
            self._become(identity)
            yield
        finally:
            self._become(before)

    def _become(self, identity: _Identity) -> None:
        syscalls.set_fs_ids(identity.uid, identity.gid)
        usual = self._own.effective
        if not identity.effective == self._acting.effective == usual:
            syscalls.set_effective_capabilities(identity.effective)
        self._acting = identity
