# SPDX-License-Identifier: LGPL-2.1-or-later
"""How many calls are answered, and mounts unmounted, at the same time, and for whom.

Each takes a process of the supervisor, which a daemon can keep waiting for as long as it wants, and
which the limits of its user do not count. So a process has its share, each user has, all users but
root together have, and root has the rest.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from dataclasses import dataclass

from efuse.supervisor.caller import Caller

__all__ = ["Busy", "Owner", "owner_of"]

_MOST_PER_PROCESS, _MOST_PER_USER, _MOST_OF_USERS, _MOST = 8, 16, 48, 96


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose call it is.

    :ivar process: id of the process.
    :ivar user: its real user id, which a set-user-ID program does not change.
    """

    process: int
    user: int


def owner_of(caller: Caller) -> Owner:
    """Return whose call the caller's is.

    :raises OSError: the caller is gone.
    """
    return Owner(caller.process, caller.user)


class Busy:
    """The calls that are being answered, by owner.

    :param owners: the owner of each.
    """

    def __init__(self, owners: Iterable[Owner]) -> None:
        self._by_process: collections.Counter[int] = collections.Counter()
        self._by_user: collections.Counter[int] = collections.Counter()
        for owner in owners:
            self.add(owner)

    def add(self, owner: Owner) -> None:
        """Add a call of *owner*."""
        self._by_process[owner.process] += 1
        self._by_user[owner.user] += 1

    def has_room(self, owner: Owner) -> bool:
        """Tell whether another call of *owner* may be answered in addition to those that are."""
        busy = self._by_user.total()
        if self._by_process[owner.process] >= _MOST_PER_PROCESS or busy >= _MOST:
            return False
        if owner.user == 0:
            return True
        of_users = busy - self._by_user[0]
        return self._by_user[owner.user] < _MOST_PER_USER and of_users < _MOST_OF_USERS
