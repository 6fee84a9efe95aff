# SPDX-License-Identifier: LGPL-2.1-or-later
"""Send notifications of every kind, most of them with wrong fields."""

from __future__ import annotations

import errno
import os
from collections import Counter
from random import Random

from tests.fuzz import layouts
from tests.fuzz.counts import Counts
from tests.fuzz.mutations import Mutator, notification
from tests.fuzz.threads import ENDED, Fuzzer, Shared

_UNKNOWN = (0, 10, 11, 255, -1, -(1 << 31), (1 << 31) - 1)
# What a notification may fail with, whatever it says.
_REFUSED = (
    *(errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EBUSY, errno.ENOMEM),
    *(errno.EOVERFLOW, errno.EIO, errno.ENAMETOOLONG, errno.EFAULT, errno.EAGAIN, errno.EINTR),
)


class Notifier(Fuzzer):
    """Sends notifications until the mount ends.

    :ivar sent: number of the notifications of each kind.
    :ivar done: number of those that the kernel carried out.
    """

    PAUSE_S = 0.008

    def __init__(self, shared: Shared, fd: int, chance: Random) -> None:
        super().__init__(shared, chance)
        self._fd = fd
        self.mutator = Mutator(chance)
        self.sent: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def add_to(self, counts: Counts) -> None:
        counts.notified += self.sent
        counts.carried_out += self.done
        counts.fields += self.mutator.fields

    def step(self) -> bool:
        """Send a notification; return whether the connection goes on."""
        known = [*layouts.NOTIFICATIONS]
        is_known = self._chance.random() < 0.95
        code = self._chance.choice(known if is_known else _UNKNOWN)
        name = layouts.NOTIFICATIONS[code][0] if is_known else "unknown"
        raw = notification(self._chance, self.mutator, code, [*self._shared.polled])
        self.sent[name] += 1
        try:
            os.write(self._fd, raw)
        except OSError as error:
            if error.errno in ENDED:
                return False
            assert error.errno in _REFUSED, (name, error)
        else:
            self.done[name] += 1
        return True
