# SPDX-License-Identifier: LGPL-2.1-or-later
"""The log of the device mapper's target log-writes, and images of the disk from parts of it.

The format is that of the kernel's Documentation/admin-guide/device-mapper/log-writes.rst and
drivers/md/dm-log-writes.c. A write is in the log when it is on the disk for certain: at the next
flush that the disk has completed, or immediately if it was forced (FUA). So the disk may have the
content of any prefix of the log after a crash.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8

_MAGIC, _VERSION = 0x6A736677736872, 1
_SUPER = struct.Struct("<QQQI")
_ENTRY = struct.Struct("<QQQQ")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the log.

    :ivar offset: where the write begins on the disk, in bytes.
    :ivar length: length of the write, in bytes; 0 for a flush and for a mark.
    :ivar flags: a combination of FLUSH, FUA, DISCARD and MARK, and of flags without meaning here.
    :ivar data_at: where the written bytes begin in the log, in bytes.
    :ivar mark: text of the mark; empty for other entries.
    """

    offset: int
    length: int
    flags: int
    data_at: int
    mark: str = ""

    @property
    def is_barrier(self) -> bool:
        """Whether the disk has promised something with it: a flush, or a forced write."""
        return bool(self.flags & (FLUSH | FUA))


def read_log(path: Path) -> list[Entry]:
    """Return the entries of the log that is stored in a file.

    :raises ValueError: the file does not hold a complete log.
    """
    with path.open("rb") as file:
        raw = file.read(_SUPER.size)
        magic, version, count, sector = _SUPER.unpack(raw.ljust(_SUPER.size, b"\0"))
        if (magic, version) != (_MAGIC, _VERSION):
            raise ValueError(f"{path} is not a log of block writes")
        entries = []
        at = sector
        for number in range(count):
            file.seek(at)
            block = file.read(sector)
            if len(block) < sector:
                raise ValueError(f"{path} ends before entry {number} of {count}")
            start, sectors, flags, text_length = _ENTRY.unpack_from(block)
            text = block[_ENTRY.size :][:text_length].decode() if flags & MARK else ""
            at += sector
            entries.append(Entry(start * sector, sectors * sector, flags, at, text))
            if not flags & (MARK | DISCARD):
                at += sectors * sector
    return entries


class Image:
    """The disk after a prefix of the log, in a sparse file.

    :ivar entries: the entries of the log.
    """

    def __init__(self, log: Path, path: Path, size: int) -> None:
        self.entries: Sequence[Entry] = read_log(log)
        self._size = size
        self._done = 0
        self._log = log.open("rb")
        self._file = path.open("w+b", buffering=0)
        self._file.truncate(size)

    def close(self) -> None:
        self._log.close()
        self._file.close()

    def advance(self, length: int) -> None:
        """Replay the log so that its first *length* entries have taken effect.

        :param length: number of entries; it must not be less than in the last call.
        """
        assert length >= self._done
        for entry in self.entries[self._done : length]:
            if not entry.length:
                continue
            if entry.flags & DISCARD:
                data = bytes(entry.length)
            else:
                self._log.seek(entry.data_at)
                data = self._log.read(entry.length)
                assert len(data) == entry.length, "the log lacks the bytes of a write"
            self._file.seek(entry.offset)
            self._file.write(data)
        self._done = length

    def copy_to(self, fd: int) -> None:
        """Make the file *fd* a copy of the image."""
        os.ftruncate(fd, 0)
        os.ftruncate(fd, self._size)
        own, end = self._file.fileno(), 0
        with contextlib.suppress(OSError):  # ENXIO: no data follows
            while True:
                at = os.lseek(own, end, os.SEEK_DATA)
                end = os.lseek(own, at, os.SEEK_HOLE)
                while at < end:
                    at += os.pwrite(fd, os.pread(own, min(end - at, 1 << 22), at), at)
