# SPDX-License-Identifier: LGPL-2.1-or-later
"""Arguments of ioctls: structures with mutated fields, at good and at bad addresses."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections import Counter
from random import Random

from tests.fuzz.layouts import Layout, Part
from tests.fuzz.mutations import Mutator

_libc = ctypes.CDLL(None, use_errno=True)  # Its calls release the interpreter lock.
_libc.mmap.restype = ctypes.c_size_t
_BAD = (0, 1, 0xFFF, 0x7FFF_FFFF_F000, 0xFFFF_8880_0000_0000, 0xFFFF_FFFF_FF60_0000, (1 << 64) - 8)
PAGE = mmap.PAGESIZE


class Memory:
    """Two pages: only the first may be accessed.

    :ivar start: address of the first page.
    """

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        nothing, size = ctypes.c_size_t(0), ctypes.c_size_t(2 * PAGE)
        self.start = int(_libc.mmap(nothing, size, 0, flags, -1, ctypes.c_long(0)))
        both = mmap.PROT_READ | mmap.PROT_WRITE
        assert not _libc.mprotect(ctypes.c_size_t(self.start), ctypes.c_size_t(PAGE), both)

    def put(self, raw: bytes, at: int = 0) -> int:
        """Write *raw* into the first page, and return its address."""
        ctypes.memmove(self.start + at, raw, len(raw))
        return self.start + at

    def get(self, length: int) -> bytes:
        return ctypes.string_at(self.start, length)


class Calls:
    """Calls of ioctl(2) by one thread.

    :param common: memory whose content other threads change during the calls.
    :ivar made: how often each ioctl was called, by name.
    :ivar succeeded: how often it returned no error.
    """

    def __init__(self, chance: Random, common: Memory) -> None:
        self._chance = chance
        self._common = common
        self.memory = Memory()
        self.mutator = Mutator(chance)
        self.made: Counter[str] = Counter()
        self.succeeded: Counter[str] = Counter()

    def call(self, fd: int, name: str, number: int, part: Part, *, racy: bool = True) -> int:
        """Call an ioctl with a structure, whose fields are changed in most of the calls.

        :param racy: whether the structure may change during the call.
        :returns: what ioctl(2) returns.
        """
        if self._chance.random() < 0.6:
            self.mutator.change(name, part, self._chance.choice((1, 1, 2, 4)))
        if self._chance.random() < 0.05:
            number ^= 1 << self._chance.randrange(32)
        self.made[name] += 1
        address = self._address(part.encode(), racy)
        result: int = _libc.ioctl(fd, ctypes.c_ulong(number), ctypes.c_void_p(address))
        if result >= 0:
            self.succeeded[name] += 1
        return result

    def _address(self, raw: bytes, racy: bool) -> int:
        """Return where the argument is: mostly in a page of the thread's own."""
        how = self._chance.random()
        if how < 0.7:
            return self.memory.put(raw + bytes(64))
        if how < 0.8 and racy:
            return self._common.put(raw)
        if how < 0.9:  # It ends behind the page.
            return self.memory.put(raw[:4], PAGE - 4)
        return self._chance.choice(_BAD)


_CLOSED = 900
"""A descriptor that stays closed: below the limit, and above all that a run opens."""


class Descriptors:
    """Descriptors that are not what an ioctl expects.

    :ivar wrong: descriptors of other files, one that is closed, and numbers beyond the limit.
    """

    def __init__(self) -> None:
        read, write = os.pipe()
        null, directory = os.open(os.devnull, os.O_RDWR), os.open("/", os.O_RDONLY)
        writable = os.memfd_create("empty")
        empty = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY)
        os.close(writable)
        self.all: list[int] = [read, write, null, directory, empty, os.open("/", os.O_PATH)]
        # The table of descriptors has this number then, but no file.
        closed = fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, _CLOSED)
        os.close(closed)
        self.wrong: list[int] = [*self.all, closed, 1 << 20, 0xFFFFFFFF]

    def close(self) -> None:
        for fd in self.all:
            os.close(fd)


def part_of(layout: Layout, **values: int) -> Part:
    return Part(layout, values)
