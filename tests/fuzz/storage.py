# SPDX-License-Identifier: LGPL-2.1-or-later
"""Call the ioctls of /dev/csd and of the runs of storage functions, and read the runs."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from random import Random

from efuse.functions import Count
from tests.fuzz import layouts
from tests.fuzz.arguments import Calls, Descriptors, Memory, part_of
from tests.fuzz.counts import Counts
from tests.fuzz.layouts import Part
from tests.fuzz.threads import Fuzzer, Shared

DEVICE = "/dev/csd"
_NAMES = ("count", "count", "count", "coun", "", "x" * 32)
# What read(2) of a run fails with: it has nothing yet, the function refuses its arguments, the last
# CSD_IOC_RESTART failed, because its arguments are at a bad address, or it has looked at as many
# blocks as max_steps allows.
_UNREADABLE = (errno.EAGAIN, errno.EPROTO, errno.EINVAL, errno.EFAULT, errno.ELOOP)
_MOST_RUNS = 3
_RUN, _RUN_LAYOUT = layouts.STORAGE_IOCTLS["CSD_IOC_RUN"]
_STATUS, _STATUS_LAYOUT = layouts.STORAGE_IOCTLS["CSD_IOC_STATUS"]
_RESTART, _RESTART_LAYOUT = layouts.STORAGE_IOCTLS["CSD_IOC_RESTART"]


class StorageCaller(Fuzzer):
    """Makes runs of a loaded function, restarts, reads and closes them.

    :param paths: files to run functions over.
    :param common: memory whose content other threads change during the calls.
    """

    def __init__(self, shared: Shared, chance: Random, paths: list[Path], common: Memory) -> None:
        super().__init__(shared, chance)
        self.calls = Calls(chance, common)
        self._args = ctypes.create_string_buffer(Count(b"a").encode(), 4096)
        self._args_size = len(Count(b"a").encode())
        self._descriptors = Descriptors()
        self._device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        self._files = [os.open(path, os.O_RDONLY) for path in paths]
        self._runs: list[int] = []

    def add_to(self, counts: Counts) -> None:
        counts.ioctls += self.calls.made
        counts.succeeded += self.calls.succeeded
        counts.fields += self.calls.mutator.fields

    def close(self) -> None:
        for fd in (self._device, *self._files, *self._runs):
            os.close(fd)
        self._descriptors.close()

    def step(self) -> bool:
        how = self._chance.randrange(5)
        if how < 2:
            self._make()
        elif how == 2:
            self.calls.call(self._run(), "CSD_IOC_STATUS", _STATUS, Part(_STATUS_LAYOUT, {}))
        elif how == 3:
            values = {"args": ctypes.addressof(self._args), "args_size": self._args_size}
            self.calls.call(self._run(), "CSD_IOC_RESTART", _RESTART, Part(_RESTART_LAYOUT, values))
        else:
            self._read()
        return True

    def _run(self) -> int:
        """Return a descriptor to call: mostly a run."""
        others = [self._device, *self._descriptors.wrong]
        return self._chance.choice(self._runs * 8 + others)

    def _make(self) -> None:
        """Make a run; close the oldest one if there are too many."""
        name = self._chance.choice(_NAMES).encode().ljust(32, b"\0")
        words = dict(
            zip(("name0", "name1", "name2", "name3"), struct.unpack("=4Q", name), strict=True)
        )
        fd = self._chance.choice(self._files * 4 + self._descriptors.wrong)
        part = part_of(
            _RUN_LAYOUT,
            fd=fd,
            place=self._chance.randrange(3),
            offset=4096 * self._chance.randrange(3),
            length=4096 * self._chance.randrange(40),
            args=ctypes.addressof(self._args),
            args_size=self._args_size,
            **words,
        )
        opened = self.calls.call(self._device, "CSD_IOC_RUN", _RUN, part)
        if opened >= 0:
            os.set_blocking(opened, False)
            self._runs.append(opened)
        if len(self._runs) > _MOST_RUNS:
            os.close(self._runs.pop(0))

    def _read(self) -> None:
        if not self._runs:
            return
        try:
            os.read(self._chance.choice(self._runs), self._chance.choice((0, 1, 16, 4096, 1 << 17)))
        except OSError as error:
            assert error.errno in _UNREADABLE, error
