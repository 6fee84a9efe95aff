# SPDX-License-Identifier: LGPL-2.1-or-later
"""A run: one mount of each mode after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from pathlib import Path

from tests.fuzz.counts import Counts
from tests.fuzz.layouts import DEVICE_IOCTLS
from tests.fuzz.session import INIT_MODE, MODES, Mode, Session, loop_device

INIT_MOUNTS = 4
"""Mounts in a row whose INIT is answered wrongly."""
_INIT_S = 0.3


class Run:
    """Fuzzes mounts.

    :param mountpoint: an empty directory.
    :param lower: a directory for backing files.
    :param say: function that is called with each message of progress.
    :ivar counts: what was done so far.
    """

    def __init__(
        self, mountpoint: Path, lower: Path, seed: int, say: Callable[[str], None] = print
    ) -> None:
        self._mountpoint, self._lower, self._seed, self._say = mountpoint, lower, seed, say
        self.counts = Counts()

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
        left = " ".join(self.counts.missing(DEVICE_IOCTLS))
        self._say(f"seed {seed}: {session.counts.lines()[0]}; not tried yet: {left or 'nothing'}")
        return session.counts
