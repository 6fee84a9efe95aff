# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tell whether the running handler's reply may give the kernel a nodeid that it does not hold yet.

For such a handler, an extent may be mapped before the kernel holds the nodeid.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

__all__ = ["HANDS_OUT", "handing_out", "hands_out"]

HANDS_OUT = frozenset({"create", "link", "lookup", "mkdir", "mknod", "readdir", "symlink"})
"""Handlers whose reply gives the kernel a nodeid."""


@dataclass
class _Reply:
    """The reply of one call of a handler in `HANDS_OUT`: still to come, or given."""

    to_come: bool = True


_reply: ContextVar[_Reply | None] = ContextVar("efuse_reply", default=None)


def hands_out(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap *handler* so that handing_out() is true in it, but not in tasks that outlive it."""

    @functools.wraps(handler)
    async def handing(*arguments: Any) -> Any:
        reply = _Reply()
        token = _reply.set(reply)
        try:
            return await handler(*arguments)
        finally:
            reply.to_come = False
            _reply.reset(token)

    return handing


def handing_out() -> bool:
    """Tell whether the caller is a handler whose reply will give the kernel a nodeid."""
    reply = _reply.get()
    return reply is not None and reply.to_come
