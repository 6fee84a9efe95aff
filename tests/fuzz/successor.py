# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take over a mount whose daemon has died, with right, wrong and random arguments and replies."""

from __future__ import annotations

import os
import select
from pathlib import Path
from random import Random

from efuse.control import Connection
from efuse.fs.mountpoint import MountOptions, mount_efuse, unmount
from tests.fuzz import layouts
from tests.fuzz.arguments import Calls, Descriptors, Memory, part_of
from tests.fuzz.counts import Counts
from tests.fuzz.layouts import Part
from tests.fuzz.mutations import Mutator
from tests.fuzz.threads import Fuzzer, Shared, attempt
from tests.guest.support import wire

_NAME = "EFUSE_IOC_TAKEOVER"
_RECOVERY_S = 600
_ANSWER_MS = 10_000


class Successor(Fuzzer):
    """Takes over a mount of its own, again and again.

    The mount that is fuzzed has a daemon. This one loses each daemon immediately.

    :param mountpoint: an empty directory.
    """

    PAUSE_S = 0.01

    def __init__(self, shared: Shared, mountpoint: Path, chance: Random, common: Memory) -> None:
        super().__init__(shared, chance)
        self.calls = Calls(chance, common)
        self._mutator = Mutator(chance)
        self._descriptors = Descriptors()
        self._mountpoint = mountpoint
        device = mount_efuse(str(mountpoint), MountOptions.parse(()))
        try:
            self._connection = Connection.at(mountpoint)
            self._answer(device, self._right())  # without that, the mount ends with its daemon
            self._connection.stable_nodeids = True
            self._connection.recovery = _RECOVERY_S
            self._mount = os.open(mountpoint, os.O_PATH | os.O_CLOEXEC)
        finally:
            os.close(device)

    def add_to(self, counts: Counts) -> None:
        counts.ioctls += self.calls.made
        counts.succeeded += self.calls.succeeded
        counts.fields += self.calls.mutator.fields + self._mutator.fields

    def close(self) -> None:
        """Unmount, and close its descriptors. It has ended."""
        os.close(self._mount)
        self._descriptors.close()
        self._connection.abort()
        unmount(str(self._mountpoint), lazy=True)

    def step(self) -> bool:
        number, layout = layouts.DEVICE_IOCTLS[_NAME]
        device = os.open("/dev/efuse", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # Sometimes it has the mount already.
            for _ in range(self._chance.choice((1, 1, 2))):
                wrong = self._chance.random() < 0.2
                fd = self._chance.choice(self._descriptors.wrong) if wrong else self._mount
                result = self.calls.call(device, _NAME, number, part_of(layout, fd=fd))
                if result == 0 and self._chance.random() < 0.9:
                    self._answer(device, self._reply())
        finally:
            os.close(device)
        return True

    def _right(self) -> Part:
        values = {"major": 7, "minor": 36, "max_readahead": 131072, "max_background": 16}
        values |= {"congestion_threshold": 12, "max_write": 131072, "time_gran": 1}
        values |= {"flags": wire.FUSE_MAX_PAGES | wire.FUSE_BIG_WRITES, "max_pages": 32}
        return Part(layouts.INIT_OUT, values)

    def _reply(self) -> Part:
        """Return a reply to INIT, which is wrong in half of the calls."""
        part = self._right()
        if self._chance.random() < 0.5:
            self._mutator.change("init", part, self._chance.choice((1, 2)))
        return part

    def _answer(self, device: int, part: Part) -> None:
        """Answer INIT."""
        poll = select.poll()
        poll.register(device, select.POLLIN)
        assert poll.poll(_ANSWER_MS), "INIT does not come"
        request = wire.parse(os.read(device, 1 << 20))
        assert request.opcode == "init", request
        attempt(lambda: os.write(device, wire.reply(request.unique, 0, part.encode())))
