# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the descriptors of a caller that are to become ones of /dev/efuse."""

from __future__ import annotations

import errno
import os
import select

from efuse.supervisor.ancestry import parent_of
from efuse.supervisor.caller import Caller, is_device
from efuse.supervisor.sharing import is_watched, own, same_file

__all__ = ["Swap", "is_in_use", "obstacle_of"]

# A report has room for them.
_MOST_PLACES = 253


class Swap:
    """All descriptors of a caller for one open file of a device, and what comes in their place.

    The process that makes this object ends soon, and the descriptors here with it.

    :param at: one of the caller's descriptors.
    :param device: descriptor of /dev/efuse, open with O_PATH.
    :param number: number of the device that *at* has to be of, as in ``st_rdev``.
    :raises OSError: the caller is gone; EBADF: its descriptor is none of that device any more; or
        /dev/efuse cannot be opened.
    :ivar places: the caller's descriptors, and whether each is closed on execve(2).
    :ivar ours: the descriptor of /dev/efuse, opened as the caller's is.
    :ivar before: a duplicate of the caller's.
    """

    def __init__(self, caller: Caller, at: int, device: int, number: int) -> None:
        places = {at, *own(caller.thread, at)}
        self.places = {fd: bool(caller.flags_of(fd) & os.O_CLOEXEC) for fd in places}
        self.before = caller.descriptor(at)
        # The supervisor gets it. To close any other file may be to wait for a daemon (FUSE_FLUSH).
        if not is_device("", number, self.before):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        kept = os.O_ACCMODE | os.O_NONBLOCK
        self.ours = os.open(f"/proc/self/fd/{device}", caller.flags_of(at) & kept | os.O_CLOEXEC)

    @property
    def has_room(self) -> bool:
        """Whether a report can name all of `places`."""
        return len(self.places) <= _MOST_PLACES


def is_in_use(device: int) -> bool:
    """Tell whether a descriptor of /dev/fuse serves a mount already."""
    poll = select.poll()
    poll.register(device, select.POLLIN)
    return not any(events & select.POLLERR for _, events in poll.poll(0))


def obstacle_of(caller: Caller, at: int, supervisor: int) -> str:
    """Return in one sentence why a caller's descriptor cannot be replaced; empty if it can.

    :param supervisor: id of the supervisor's process.
    """
    places = own(caller.thread, at)
    if len(places) > _MOST_PLACES:
        return f"the daemon has more than {_MOST_PLACES} descriptors of the same open /dev/fuse"
    for other in same_file(caller.thread, at):
        if not _is_ours(other, supervisor):
            return (
                f"process {other} has the same /dev/fuse open, and could not serve an eFuse mount"
            )
    if is_watched(caller.thread, places):
        return "the daemon watches /dev/fuse by epoll(7) before it mounts"
    return ""


def _is_ours(process: int, supervisor: int) -> bool:
    """Tell whether a process has a duplicate of the caller's descriptor to find an answer."""
    spawner = os.getppid()
    return process in (supervisor, spawner) or parent_of(process) == spawner
