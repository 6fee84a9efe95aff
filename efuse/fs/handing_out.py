# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tell whether the running handler's reply may give the kernel a nodeid that it does not hold yet.

For such a handler, an extent may be mapped before the kernel holds the nodeid.
"""

from __future__ import annotations

from contextvars import ContextVar

__all__ = ["HANDS_OUT", "begin_reply", "handing_out"]

HANDS_OUT = frozenset({"create", "link", "lookup", "mkdir", "mknod", "readdir", "symlink"})
"""Handlers whose reply gives the kernel a nodeid."""


class Reply:
    """The reply of one call of a handler in `HANDS_OUT`: still to come, or given."""

    to_come: bool = True


_reply: ContextVar[Reply | None] = ContextVar("efuse_reply", default=None)


def begin_reply() -> Reply:
    """Return the reply of the handler that the caller is about to run. It is still to come.

    The caller clears ``to_come`` when the handler has returned. Tasks that outlive the handler see
    that, too.
    """
    reply = Reply()
    _reply.set(reply)
    return reply


def handing_out() -> bool:
    """Tell whether the caller is a handler whose reply will give the kernel a nodeid."""
    reply = _reply.get()
    return reply is not None and reply.to_come
