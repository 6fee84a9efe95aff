# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file whose blocks hold one number each, written and read at the same time."""

from __future__ import annotations

import mmap
import os
import random
import struct
import threading
from collections.abc import Callable

from tests.guest.support.daemons import Mount, eventually
from tests.guest.support.file_data import BLOCK

BLOCKS = 24


class Numbered:
    """The file ``n``. Its numbers never decrease, so a torn or stale read is noticed.

    :ivar reads: number of reads, of all readers together.
    :ivar writes: number of writes.
    :ivar wrong: for each wrong read: block, number, and the number that this reader saw before.
    """

    def __init__(self, m: Mount) -> None:
        m.model.create("n", bytes(BLOCKS * BLOCK))
        self._path = m / "n"
        self._stop = threading.Event()
        self.reads = self.writes = 0
        self.wrong: list[tuple[int, int, int]] = []

    def _write(self) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_DIRECT)
        while not self._stop.is_set():
            number = self.writes + 1
            os.pwrite(fd, struct.pack("=Q", number) * 512, number % BLOCKS * BLOCK)
            self.writes = number
        os.close(fd)

    def _read(self, seed: int) -> None:
        rng, last = random.Random(seed), [0] * BLOCKS
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECT)
        got = mmap.mmap(-1, 4 * BLOCK)
        while not self._stop.is_set():
            n = rng.randrange(BLOCKS - 4)
            assert os.preadv(fd, [got], n * BLOCK) == len(got)
            for i in range(4):
                block = got[i * BLOCK : (i + 1) * BLOCK]
                number = struct.unpack_from("=Q", block)[0]
                if block != block[:8] * 512 or number < last[n + i]:
                    self.wrong.append((n + i, number, last[n + i]))
                last[n + i] = number
            self.reads += 1
        os.close(fd)

    def run(self, enough: Callable[[], bool], beside: Callable[[], None] | None = None) -> None:
        """Write, read and call ``beside`` repeatedly, until *enough* or until a read is wrong.

        :raises AssertionError: a read was wrong.
        """

        def repeat() -> None:
            while beside and not self._stop.is_set():
                beside()

        threads = [threading.Thread(target=self._write), threading.Thread(target=repeat)]
        threads += [threading.Thread(target=self._read, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: enough() or self.wrong)
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        assert not self.wrong
