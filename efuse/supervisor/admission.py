# SPDX-License-Identifier: LGPL-2.1-or-later
"""How many calls are answered at the same time, and for whom.

Each takes a process of the supervisor, which a daemon can keep waiting for as long as it wants, and
which the limits of its user do not count. So a process has its share, each user has, all users but
root together have, and root has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from efuse.supervisor.caller import Caller

__all__ = ["Owner", "has_room", "owner_of"]

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


def has_room(owner: Owner, busy: Sequence[Owner]) -> bool:
    """Tell whether another call of *owner* may be answered beside those that are."""
    own = sum(each.process == owner.process for each in busy)
    if own >= _MOST_PER_PROCESS or len(busy) >= _MOST:
        return False
    if owner.user == 0:
        return True
    of_user = sum(each.user == owner.user for each in busy)
    of_users = sum(each.user != 0 for each in busy)
    return of_user < _MOST_PER_USER and of_users < _MOST_OF_USERS
