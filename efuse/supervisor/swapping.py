# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the descriptors of a caller that are to become ones of /dev/efuse."""

from __future__ import annotations

import os

from efuse.supervisor.caller import Caller
from efuse.supervisor.sharing import is_watched, same_file

__all__ = ["Swap"]


class Swap:
    """All descriptors of a caller for one open file of /dev/fuse, and what comes in their place.

    The process that makes this object ends soon, and the descriptors here with it.

    :param at: one of the caller's descriptors.
    :param device: descriptor of /dev/efuse, open with O_PATH.
    :raises OSError: the caller is gone; or /dev/efuse cannot be opened.
    :ivar places: the caller's descriptors, and whether each is closed on execve(2).
    :ivar ours: the descriptor of /dev/efuse, opened as the caller's is.
    :ivar before: a duplicate of the caller's.
    :ivar obstacle: why they cannot be replaced, in one sentence; empty if they can.
    """

    def __init__(self, caller: Caller, at: int, device: int) -> None:
        sharing = same_file(caller.thread, at)
        own = {at, *sharing.pop(caller.thread, ())}
        self.places = {fd: bool(caller.flags_of(fd) & os.O_CLOEXEC) for fd in own}
        self.before = caller.descriptor(at)
        kept = os.O_ACCMODE | os.O_NONBLOCK
        self.ours = os.open(f"/proc/self/fd/{device}", caller.flags_of(at) & kept | os.O_CLOEXEC)
        self.obstacle = ""
        if sharing:
            self.obstacle = (
                f"process {next(iter(sharing))} has the same /dev/fuse open,"
                " and could not serve an eFuse mount"
            )
        elif is_watched(caller.thread, [*own]):
            self.obstacle = "the daemon watches /dev/fuse by epoll(7) before it mounts"
