# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file system exerciser: random operations on one file, each compared with a model in memory.

It follows Apple's fsx, but uses several views of the file at the same time: descriptors of one or
of several mounts. The same seed always gives the same operations.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LIMIT = 120_000
"""Largest size of the file, bytes."""

_PAGE = mmap.PAGESIZE
_LAST = 30
_KEEP_SIZE, _PUNCH_HOLE, _ZERO_RANGE = 1, 2, 16
_FALLOCATE_MODES = (0, _KEEP_SIZE, _PUNCH_HOLE | _KEEP_SIZE, _ZERO_RANGE)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p


class MismatchError(AssertionError):
    """The file differs from the model."""


@dataclass
class View:
    """A descriptor of the file.

    :ivar path: path of the file.
    :ivar flags: flags of open(2) in addition to O_RDWR.
    :ivar reads: whether the file is also read through this view. The page cache of one mount does
        not notice changes through another mount, so with several mounts only O_DIRECT reads are
        useful.
    :ivar fd: the open descriptor, or -1.
    """

    path: Path
    flags: int = 0
    reads: bool = True
    fd: int = -1

    def open(self) -> None:
        self.fd = os.open(self.path, os.O_RDWR | self.flags)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        os.close(fd)

    def __str__(self) -> str:
        return f"{self.path}{' O_DIRECT' if self.flags & os.O_DIRECT else ''}"


class Exerciser:
    """Performs random operations through *views* of one file, and compares with a model.

    :param lower: the underlying file; compared with the model after each fsync.
    :param mapped: whether to use also mmap(2), appends and copy_file_range(2).
    """

    def __init__(self, views: list[View], lower: Path, seed: int, *, mapped: bool = True) -> None:
        self.done: Counter[str] = Counter()
        """How often each operation was performed."""
        self._rng = random.Random(seed)
        self._seed = seed
        self._views = views
        self._readers = [view for view in views if view.reads]
        self._lower = lower
        self._model = bytearray()
        self._number = 0
        self._log: deque[tuple[int, str, View, int, tuple[int, ...]]] = deque(maxlen=_LAST)
        # Writes take pieces of this at odd offsets, so that data at a wrong place is noticed.
        self._pool = random.Random(0).randbytes(1 << 21)
        self._buffer = mmap.mmap(-1, LIMIT + 2 * _PAGE)
        self._operations: dict[Callable[[], None], int] = {
            self._read: 30,
            self._write: 30,
            self._truncate: 5,
            self._fallocate: 3,
            self._fsync: 1,
            self._reopen: 2,
            self._drop: 1,
            self._size: 2,
        }
        if mapped:
            self._operations |= {
                self._read_map: 6,
                self._write_map: 6,
                self._append: 4,
                self._copy: 4,
            }

    def run(self, operations: int) -> None:
        """Perform *operations* operations; then compare the whole file through every view."""
        choices = [operation for operation, n in self._operations.items() for _ in range(n)]
        for view in self._views:
            view.open()
        try:
            for self._number in range(operations):
                operation = self._rng.choice(choices)
                self.done[operation.__name__.strip("_")] += 1
                try:
                    operation()
                except OSError as error:
                    raise self._mismatch(f"{error!r}") from error
            for view in self._readers:
                self._note("all", view, 0, LIMIT)
                self._compare(self._pread(view, LIMIT, 0), 0, LIMIT)
            self._sync(self._views)
        finally:
            for view in self._views:
                with contextlib.suppress(OSError):
                    view.close()

    # Choices of what an operation works on

    def _note(self, what: str, view: View, *numbers: int) -> None:
        self._log.append((self._number, what, view, len(self._model), numbers))

    def _view(self) -> View:
        return self._rng.choice(self._views)

    def _place(self, end: int) -> int:
        """Return a random offset up to *end*, often at the edge of a page."""
        at = self._rng.randint(0, end)
        if self._rng.random() < 0.4:
            at = at // _PAGE * _PAGE + self._rng.choice((-1, 0, 0, 0, 0, 1))
        return min(max(at, 0), end)

    def _length(self, most: int) -> int:
        """Return a random length from 1 to *most*, more often small, often of whole pages."""
        length = self._rng.randint(1, 1 << self._rng.randint(1, 16))
        if self._rng.random() < 0.4:
            length = -(-length // _PAGE) * _PAGE
        return min(length, most)

    def _span(self, end: int) -> tuple[int, int]:
        """Return offset and length of a random part of the first *end* bytes; *end* is not 0."""
        at = self._place(end - 1)
        return at, self._length(end - at)

    def _data(self, length: int) -> bytes:
        start = self._rng.randrange(len(self._pool) - length)
        return self._pool[start : start + length]

    def _aligned(self, length: int) -> memoryview:
        """Return a buffer that mostly starts at a page, and sometimes does not."""
        shift = self._rng.choice((0, 0, 0, 512, 1))
        return memoryview(self._buffer)[shift : shift + length]

    # Operations

    def _read(self) -> None:
        view = self._rng.choice(self._readers)
        at = self._place(len(self._model) + _PAGE)
        length = self._length(LIMIT)
        self._note("read", view, at, length)
        self._compare(self._pread(view, length, at), at, length)

    def _pread(self, view: View, length: int, at: int) -> bytes:
        buffer = self._aligned(length)
        return bytes(buffer[: os.preadv(view.fd, [buffer], at)])

    def _write(self) -> None:
        view = self._view()
        at = self._place(LIMIT - 1 if self._rng.random() < 0.2 else len(self._model))
        at = min(at, LIMIT - 1)
        data = self._data(self._length(LIMIT - at))
        self._note("write", view, at, len(data))
        buffer = self._aligned(len(data))
        buffer[:] = data
        self._whole(os.pwritev(view.fd, [buffer], at), len(data))
        self._store(at, data)

    def _append(self) -> None:
        view = self._view()
        at = len(self._model)
        if at == LIMIT:
            return
        data = self._data(self._length(min(LIMIT - at, 2 * _PAGE)))
        self._note("append", view, at, len(data))
        fd = os.open(view.path, os.O_WRONLY | os.O_APPEND | view.flags)
        try:
            self._whole(os.write(fd, data), len(data))
        finally:
            os.close(fd)
        self._store(at, data)

    def _truncate(self) -> None:
        view = self._view()
        size = self._place(LIMIT)
        self._note("truncate", view, size)
        os.ftruncate(view.fd, size)
        self._resize(size)

    def _fallocate(self) -> None:
        view = self._view()
        mode = self._rng.choice(_FALLOCATE_MODES)
        at = self._place(LIMIT - 1)
        length = self._length(LIMIT - at)
        self._note(f"fallocate {mode}", view, at, length)
        if _libc.fallocate(view.fd, mode, ctypes.c_long(at), ctypes.c_long(length)):
            number = ctypes.get_errno()
            if number != errno.EOPNOTSUPP:
                raise OSError(number, os.strerror(number))
            self.done["fallocate, not supported"] += 1
            return
        if not mode & _KEEP_SIZE:
            self._resize(max(len(self._model), at + length))
        if mode & (_PUNCH_HOLE | _ZERO_RANGE):
            end = min(at + length, len(self._model))
            self._model[at:end] = bytes(max(end - at, 0))

    def _read_map(self) -> None:
        if not self._model:
            return
        view = self._rng.choice(self._readers)
        at, length = self._span(len(self._model))
        self._note("read map", view, at, length)
        start = at // _PAGE * _PAGE
        with mmap.mmap(view.fd, at + length - start, prot=mmap.PROT_READ, offset=start) as memory:
            self._compare(memory[at - start :], at, length)
        end = len(self._model) % _PAGE
        if end and at + length == len(self._model):
            self._read_last_page(view, end)

    def _read_last_page(self, view: View, end: int) -> None:
        """Check that the last page is zero behind the end of the file."""
        start = len(self._model) - end
        page = _libc.mmap(
            None,
            ctypes.c_size_t(_PAGE),
            mmap.PROT_READ,
            mmap.MAP_SHARED,
            view.fd,
            ctypes.c_long(start),
        )
        if page == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap failed")
        rest = ctypes.string_at(page + end, _PAGE - end)
        _libc.munmap(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE))
        if any(rest):
            raise self._mismatch(f"behind the end is {rest.lstrip(bytes(1))[:8]!r}")

    def _write_map(self) -> None:
        if not self._model:
            return
        view = self._view()
        at, length = self._span(len(self._model))
        data = self._data(length)
        synced = self._rng.random() < 0.1
        self._note("write map, msync" if synced else "write map", view, at, length)
        start = at // _PAGE * _PAGE
        with mmap.mmap(view.fd, at + length - start, offset=start) as memory:
            memory[at - start :] = data
            if synced:
                memory.flush()
        self._store(at, data)
        if synced:
            self._compare(self._lower_bytes(at, length), at, length)

    def _copy(self) -> None:
        source, target = self._rng.choice(self._readers), self._view()
        if len(self._model) < 2:
            return
        at, length = self._span(len(self._model) // 2)
        length = min(length, len(self._model) // 2 - at)
        to = self._rng.randint(at + length, LIMIT - length)
        self._note("copy", target, at, to, length)
        data = bytes(self._model[at : at + length])
        copied = 0
        while copied < length:
            n = os.copy_file_range(source.fd, target.fd, length - copied, at + copied, to + copied)
            if not n:
                raise self._mismatch(f"copied only {copied} bytes")
            copied += n
        self._store(to, data)

    def _fsync(self) -> None:
        self._sync([self._view()] if len({v.path for v in self._views}) == 1 else self._views)

    def _sync(self, views: list[View]) -> None:
        for view in views:
            self._note("fsync", view)
            os.fsync(view.fd)
        self._compare(self._lower_bytes(0, LIMIT), 0, LIMIT)

    def _reopen(self) -> None:
        view = self._view()
        self._note("reopen", view)
        view.close()
        view.open()

    def _drop(self) -> None:
        """Drop the file's written data from the page cache."""
        view = self._view()
        self._note("drop", view)
        os.fsync(view.fd)
        os.posix_fadvise(view.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _size(self) -> None:
        view = self._view()
        self._note("size", view)
        size = os.fstat(view.fd).st_size
        if size != len(self._model):
            raise self._mismatch(f"the size is {size:#x}")

    # The model

    def _resize(self, size: int) -> None:
        if size < len(self._model):
            del self._model[size:]
        else:
            self._model.extend(bytes(size - len(self._model)))

    def _store(self, at: int, data: bytes) -> None:
        self._resize(max(len(self._model), at + len(data)))
        self._model[at : at + len(data)] = data

    def _lower_bytes(self, at: int, length: int) -> bytes:
        fd = os.open(self._lower, os.O_RDONLY)
        try:
            return os.pread(fd, length, at)
        finally:
            os.close(fd)

    def _whole(self, done: int, length: int) -> None:
        if done != length:
            raise self._mismatch(f"wrote {done:#x} of {length:#x} bytes")

    def _compare(self, got: bytes, at: int, length: int) -> None:
        """Check that *got* is the right result of reading *length* bytes at *at*."""
        expected = self._model[at : at + length]
        if got == expected:
            return
        if len(got) != len(expected):
            raise self._mismatch(f"{len(got):#x} bytes were read, not {len(expected):#x}")
        wrong = [n for n in range(len(got)) if got[n] != expected[n]]
        first, last = wrong[0], wrong[-1]
        raise self._mismatch(
            f"{len(wrong):#x} bytes from {at + first:#x} to {at + last:#x} are wrong: "
            f"{got[first : first + 16].hex()}, not {expected[first : first + 16].hex()}"
        )

    def _mismatch(self, what: str) -> MismatchError:
        last = "".join(
            f"\n{n}: {name} {' '.join(map(hex, numbers))} of {size:#x} by {view}"
            for n, name, view, size, numbers in self._log
        )
        return MismatchError(f"{what}; seed {self._seed}, the last operations:{last}")
