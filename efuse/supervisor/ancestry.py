# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which processes descend from one that has confined itself by Landlock.

Nothing in /proc tells whether a process is confined. The children of a confined process are, too,
and the kernel forgets whose child a process was when its parent ends. So a process is known not to
be confined only while its ancestors, up to the first process of the daemon, are all there.

A process without the right to mount can confine itself only after it has set no_new_privs, which
the processes below it keep. So it confines none that can still gain rights, as by a set-user-ID
program: what users do has no effect on the mounts of others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Set as AbstractSet
from pathlib import Path

__all__ = ["Confined", "is_confined", "parent_of"]

Identity = tuple[int, int]
"""The id of a process, and the time at which it began: ids are used again."""

_MOST = 256


class Confined:
    """The processes that have confined themselves.

    :ivar has_any: whether there ever was one.
    :ivar has_too_many: whether there are so many that every process counts as confined.
    :ivar processes: the confined processes. Some may have ended.
    """

    def __init__(self) -> None:
        self.has_any = self.has_too_many = False
        self.processes: frozenset[Identity] = frozenset()

    @property
    def known(self) -> frozenset[Identity] | bool:
        """The confined processes; False: there never was one; True: every process counts as one."""
        return self.has_too_many or (self.has_any and self.processes)

    def add(self, process: int) -> None:
        """Note that a process may be confined from now on.

        Any process may ask for that as often as it wants, so the others are looked at only now and
        then.
        """
        self.has_any = True
        begun = _seen(process)
        if begun is None or self.has_too_many:
            return
        self.processes |= {(process, begun[1])}
        if len(self.processes) > _MOST:
            # The children of one that has ended have lost their ancestor, and count as confined.
            self.processes = frozenset(each for each in self.processes if _is_there(each))
            self.has_too_many = len(self.processes) > _MOST // 2


def _is_there(identity: Identity) -> bool:
    seen = _seen(identity[0])
    return seen is not None and seen[1] == identity[1]


def is_confined(process: int, first: int, confined: AbstractSet[Identity]) -> bool:
    """Tell whether a process or one of its ancestors is confined, or may be.

    :param first: id of the first process of the daemon.
    :param confined: the processes that are.
    """
    seen = _seen(process)
    while seen is not None:
        if (process, seen[1]) in confined:
            return True
        if process == first:
            return False
        process, seen = seen[0], _seen(seen[0])
    return True


def parent_of(process: int) -> int:
    """Return the id of the parent of a process; 0 if there is none."""
    seen = _seen(process)
    return seen[0] if seen else 0


def _seen(process: int) -> tuple[int, int] | None:
    """Return the id of the parent of a process, and the time at which the process began."""
    with contextlib.suppress(OSError):
        # The name of the program is any bytes, in parentheses.
        words = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return int(words[1]), int(words[19])
    return None
