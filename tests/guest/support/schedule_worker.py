# SPDX-License-Identifier: LGPL-2.1-or-later
"""A worker of a random schedule: a process that does one operation after the other, as told."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.guest.support.daemons import force_stat
from tests.guest.support.file_data import pread_direct
from tests.guest.support.schedule_operations import DIRECTORY, FILES, PAGE, SIZE, XATTR, Operation

QUIT = None
"""What a worker is told to make it end."""


class Worker:
    """The process. Its first operation opens the files.

    :param point: the mount.
    :param inner: the process's end of a pipe.
    :param outer: the other end.
    :param strange: descriptors that the process must not have, such as the daemon's.
    :param mapped: whether it maps the files.
    :ivar pid: its process.
    :ivar pipe: the end of a pipe to which operations are sent, and which brings the results:
        whether the operation succeeded, and the result or the errno.
    """

    def __init__(
        self, point: Path, inner: Connection, outer: Connection, strange: set[int], *, mapped: bool
    ) -> None:
        self.pipe = outer
        self.pid = os.fork()
        if self.pid:
            inner.close()
            return
        status = 1
        try:
            gc.disable()  # a collection would copy all pages that hold objects
            for fd in strange:
                os.close(fd)
            _Doer(point, mapped).run(inner)
            status = 0
        finally:
            if status:
                os.write(2, traceback.format_exc().encode())
            os._exit(status)

    def stack(self) -> str:
        """Return where in the kernel the process is."""
        return Path(f"/proc/{self.pid}/stack").read_text()


class _Doer:
    """Does operations, in the process of a worker."""

    def __init__(self, point: Path, mapped: bool) -> None:
        self._point = point
        self._mapped = mapped
        self._fds: list[int] = []
        self._direct: list[int] = []
        self._maps: list[mmap.mmap] = []

    def run(self, pipe: Connection) -> None:
        while (operation := pipe.recv()) is not QUIT:
            do: Callable[[Operation], Any] = getattr(self, f"_{operation.kind}")
            try:
                answer = True, do(operation)
            except OSError as error:
                answer = False, error.errno or errno.EIO
            pipe.send(answer)
        for memory in self._maps:
            memory.close()
        for fd in (*self._fds, *self._direct):
            os.close(fd)

    def _path(self, name: str) -> str:
        return f"{self._point}/{name}"

    def _named(self, name: str) -> str:
        return f"{self._point}/{DIRECTORY}/{name}"

    def _open(self, _: Operation) -> None:
        for name in FILES:
            self._fds.append(os.open(self._path(name), os.O_RDWR))
            self._direct.append(os.open(self._path(name), os.O_RDWR | os.O_DIRECT))
            if self._mapped:
                self._maps.append(mmap.mmap(self._fds[-1], 2 * PAGE))

    def _write(self, o: Operation) -> int:
        return os.pwrite(self._fds[o.file], bytes([o.value]) * o.length, o.at)

    def _write_direct(self, o: Operation) -> int:
        with mmap.mmap(-1, -(-o.length // PAGE) * PAGE) as buffer, memoryview(buffer) as view:
            view[: o.length] = bytes([o.value]) * o.length
            return os.pwritev(self._direct[o.file], [view[: o.length]], o.at)

    def _append(self, o: Operation) -> int:
        fd = os.open(self._path(FILES[o.file]), os.O_WRONLY | os.O_APPEND)
        try:
            return os.write(fd, bytes([o.value]) * o.length)
        finally:
            os.close(fd)

    def _truncate(self, o: Operation) -> None:
        os.ftruncate(self._fds[o.file], o.at)

    def _open_truncated(self, o: Operation) -> None:
        os.close(os.open(self._path(FILES[o.file]), os.O_WRONLY | os.O_TRUNC))

    def _read(self, o: Operation) -> bytes:
        return os.pread(self._fds[o.file], o.length, o.at)

    def _read_direct(self, o: Operation) -> bytes:
        return pread_direct(self._direct[o.file], o.length, o.at)

    def _read_opened(self, o: Operation) -> bytes:
        fd = os.open(self._path(FILES[o.file]), os.O_RDONLY)
        try:
            return os.pread(fd, o.length, o.at)
        finally:
            os.close(fd)

    def _load(self, o: Operation) -> bytes:
        return self._maps[o.file][o.at : o.at + o.length]

    def _store(self, o: Operation) -> None:
        self._maps[o.file][o.at : o.at + o.length] = bytes([o.value]) * o.length

    def _msync(self, o: Operation) -> None:
        self._maps[o.file].flush()

    def _fsync(self, o: Operation) -> None:
        os.fsync(self._fds[o.file])

    def _stat(self, o: Operation) -> Any:
        return _facts(os.fstat(self._fds[o.file]))

    def _stat_forced(self, o: Operation) -> Any:
        return _facts(force_stat(self._fds[o.file]))

    def _chmod(self, o: Operation) -> None:
        os.fchmod(self._fds[o.file], o.value)

    def _setxattr(self, o: Operation) -> None:
        os.setxattr(self._fds[o.file], XATTR, b"%d" % o.value)

    def _getxattr(self, o: Operation) -> bytes:
        return os.getxattr(self._fds[o.file], XATTR)

    def _listxattr(self, o: Operation) -> list[str]:
        return os.listxattr(self._fds[o.file])

    def _removexattr(self, o: Operation) -> None:
        os.removexattr(self._fds[o.file], XATTR)

    def _stat_name(self, o: Operation) -> Any:
        return _facts(os.lstat(self._named(o.name)))

    def _list(self, _: Operation) -> list[str]:
        return os.listdir(self._named(""))

    def _link(self, o: Operation) -> None:
        os.link(self._path(FILES[o.file]), self._named(o.name))

    def _rename(self, o: Operation) -> None:
        os.rename(self._named(o.name), self._named(o.other))

    def _unlink(self, o: Operation) -> None:
        os.unlink(self._named(o.name))

    def _mkdir(self, o: Operation) -> None:
        os.mkdir(self._named(o.name))

    def _rmdir(self, o: Operation) -> None:
        os.rmdir(self._named(o.name))

    def _symlink(self, o: Operation) -> None:
        os.symlink("target", self._named(o.name))

    def _create(self, o: Operation) -> None:
        os.close(os.open(self._named(o.name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))

    def _drop(self, o: Operation) -> None:
        """Drop the clean pages of a file."""
        os.posix_fadvise(self._fds[o.file], 0, 0, os.POSIX_FADV_DONTNEED)

    def _whole(self, o: Operation) -> bytes:
        """Read a whole file past FUSE's page cache."""
        return pread_direct(self._direct[o.file], 2 * SIZE, 0)


def _facts(found: Any) -> tuple[int, int, int, int]:
    return found.st_ino, found.st_mode, found.st_size, found.st_nlink
