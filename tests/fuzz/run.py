# SPDX-License-Identifier: LGPL-2.1-or-later
"""A run: one mount of each mode after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from pathlib import Path

from tests.fuzz.counts import Counts
from tests.fuzz.layouts import DEVICE_IOCTLS
from tests.fuzz.session import INIT_MODE, MODES, Mode, Session, loop_device
from tests.guest.support import wire

INIT_MOUNTS = 4
"""Mounts in a row whose INIT is answered wrongly."""
_INIT_S = 0.3
CARRIED_OUT = ("inval_inode", "inval_entry", "store", "retrieve")
"""Notifications that the kernel has to carry out."""


def _untried_of(mode: Mode, counts: Counts) -> list[str]:
    """Return what the mounts of a mode have not shown."""
    shown = {"compared bytes": counts.checked}
    if mode.handlers:
        shown["answers of the kernel"] = counts.hits
    if mode.init_flags & wire.FUSE_PASSTHROUGH:
        shown["reads by FUSE's passthrough"] = counts.through
    return [f"{what} in {mode.name!r}" for what, number in shown.items() if not number]


class Run:
    """Fuzzes mounts.

    :param mountpoint: an empty directory.
    :param lower: a directory for backing files.
    :param say: function that is called with each message of progress.
    :ivar counts: what was done so far.
    :ivar by_mode: what was done so far on the mounts of each mode, by the mode's name.
    """

    def __init__(
        self, mountpoint: Path, lower: Path, seed: int, say: Callable[[str], None] = print
    ) -> None:
        self._mountpoint, self._lower, self._seed, self._say = mountpoint, lower, seed, say
        self.counts = Counts()
        self.by_mode = {mode.name: Counts() for mode in (*MODES, INIT_MODE)}

    def untried(self) -> list[str]:
        """Return what the run is still to try, and what has never succeeded.

        A run in which each call fails tries everything, and shows nothing.
        """
        return [
            *self.counts.missing(DEVICE_IOCTLS),
            *(f"success of {name}" for name in DEVICE_IOCTLS if not self.counts.succeeded[name]),
            *(f"success of {name}" for name in CARRIED_OUT if not self.counts.carried_out[name]),
            *(name for mode in MODES for name in _untried_of(mode, self.by_mode[mode.name])),
        ]

    def modes(
        self, seconds: float, is_content: Callable[[], bool] = lambda: True
    ) -> Generator[tuple[Mode, Counts], None, None]:
        """Fuzz a mount of each mode in turn, again and again; yield what was done in each.

        :param seconds: duration of each mount.
        :param is_content: function that tells whether to go on.
        """
        with loop_device(self._lower) as device:
            for turn in itertools.count():
                for mode in MODES:
                    yield mode, self._fuzz(mode, turn, seconds, is_content, device)
                counts = Counts()
                for number in range(INIT_MOUNTS):
                    turn_ = turn * INIT_MOUNTS + number
                    counts.add(self._fuzz(INIT_MODE, turn_, _INIT_S, is_content, device))
                yield INIT_MODE, counts

    def _fuzz(
        self,
        mode: Mode,
        turn: int,
        seconds: float,
        is_content: Callable[[], bool],
        device: Path,
    ) -> Counts:
        seed = f"{self._seed} {mode.name} {turn}"
        session = Session(self._mountpoint, self._lower, mode, seed, device)
        try:
            session.run(seconds, is_content)
        finally:
            session.close()
            self.counts.add(session.counts)
            self.by_mode[mode.name].add(session.counts)
        left = ", ".join(self.untried())
        self._say(f"seed {seed}: {session.counts.lines()[0]}; not tried yet: {left or 'nothing'}")
        return session.counts
