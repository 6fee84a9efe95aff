# SPDX-License-Identifier: LGPL-2.1-or-later
"""The exclusive mount on which random schedules run, with the daemon in the test's own process.

The process must not use the mount itself, because it would wait for itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
from collections import Counter
from dataclasses import replace
from pathlib import Path

from efuse import bpf
from efuse.closing import Closing
from efuse.control import PATHS, Connection, find
from efuse.fs import extents
from efuse.fs.mountpoint import MountOptions, mount_efuse, unmount
from tests.guest.support import wire
from tests.guest.support.scripted_daemon import Options, ScriptedDaemon
from tests.guest.support.wire import Request

_PROMISES = ("no_open", "no_flush", "nodeid_per_file")
_ANSWER_S = 60


class StepwiseDaemon(ScriptedDaemon):
    """A scripted daemon that does one step when it is told to.

    Files may have their bytes in backing files.
    """

    def __init__(self, fd: int) -> None:
        unused, _ = multiprocessing.Pipe()
        super().__init__(fd, unused, Options())
        self._backing: dict[int, int] = {}

    def set_timeouts(self, seconds: float) -> None:
        """Let names and attributes in replies be valid for that time, also missing names."""
        self._options = replace(
            self._options,
            entry_timeout=seconds,
            attr_timeout=seconds,
            negative_timeout=seconds or None,
        )

    def set_backing(self, files: dict[int, int]) -> None:
        """Keep the bytes of some files in backing files: descriptors by inode number."""
        self._backing = files

    def take(self) -> Request | None:
        """Read a request; return None if there is none. FORGETs are obeyed."""
        try:
            request = wire.parse(os.read(self._fd, 1 << 18))
        except BlockingIOError:
            return None
        if request.opcode in ("forget", "batch_forget"):
            for nodeid, lookups in wire.forgets(request):
                self.nodeids.forget(nodeid, lookups)
            return None
        return request

    def handle(self, request: Request) -> bytes:
        """Carry out a request; return the answer."""
        return self._answer(request)

    def send(self, answer: bytes) -> None:
        """Send the answer to a request."""
        self._send(answer)

    def data(self, ino: int, most: int) -> bytes:
        """Return the content of a file, at most *most* bytes of it."""
        if ino in self._backing:
            return os.pread(self._backing[ino], most, 0)
        return bytes(self.model.get(ino).data[:most])

    def _do_read(self, request: Request) -> bytes:
        if request.nodeid in self._backing:
            return os.pread(self._backing[request.nodeid], request.size, request.offset)
        return super()._do_read(request)

    def _do_write(self, request: Request) -> bytes:
        if request.nodeid in self._backing:
            os.pwrite(self._backing[request.nodeid], request.rest[: request.size], request.offset)
        return super()._do_write(request)


class ScheduleMount(Closing):
    """An exclusive mount with the built-in handlers.

    :ivar point: the mount point.
    :ivar device: descriptor of the daemon.
    :ivar daemon: the daemon.
    """

    def __init__(self, point: Path) -> None:
        self.point = point
        words = ("allow_other", "default_permissions", "stack_depth=1")
        self.device = mount_efuse(str(point), MountOptions.parse(words))
        os.set_blocking(self.device, False)
        self.daemon = StepwiseDaemon(self.device)
        assert select.select([self.device], [], [], _ANSWER_S)[0], "the kernel sends no INIT"
        request = self.daemon.take()
        assert request is not None
        self.daemon.send(self.daemon.handle(request))
        self._connection = Connection(find(point).connection)
        self._connection.consistency = "exclusive"
        for promise in _PROMISES:
            setattr(self._connection, promise, True)
        self._attachment = bpf.attach(self._connection.id)

    def hits(self) -> Counter[str]:
        """Return how many requests the kernel has answered, by opcode."""
        names = self._connection.opcodes()
        return Counter({n: self._connection.counts(f"stats/{n}")["hits"] for n in names})

    def paths(self) -> Counter[str]:
        """Return how many READs and WRITEs each path has carried out."""
        return Counter({p: self._connection.counts(f"paths/{p}")["requests"] for p in PATHS})

    def notify(self, message: bytes) -> None:
        """Notify the kernel; it may wait for an answer of the daemon first."""
        with contextlib.suppress(FileNotFoundError):  # the kernel has no such inode or name
            os.write(self.device, message)

    def map(self, ino: int, fd: int, length: int) -> None:
        """Map a file to a backing file."""
        extents.map_extent(self.device, extents.Extent(ino, fd, 0, length, write=True))

    def unmap(self, ino: int) -> None:
        """Unmap a file; the kernel waits until no READ or WRITE uses its backing file."""
        extents.unmap_extents(self.device, ino)

    def close(self) -> None:
        self._connection.abort()  # a notification may be under way, which holds the device open
        with contextlib.suppress(OSError):
            unmount(str(self.point), lazy=True)
        self._attachment.close()
        os.close(self.device)
