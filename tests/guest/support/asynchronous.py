# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls of the test's own process that do not end immediately: open(2), and io_submit(2)."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import threading
from pathlib import Path

from tests.guest.support.daemons import Mount
from tests.guest.support.file_data import BLOCK

ASYNC_DIO = 1 << 15
PREAD, PWRITE = 0, 1
_NO_ACCESS = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_ssize_t
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}


class Opening(threading.Thread):
    """open(2) in a thread, which leaves the file open: a RELEASE would end the size.

    :ivar fd: the descriptor when the thread has ended.
    """

    def __init__(self, path: str, flags: int) -> None:
        super().__init__(daemon=True)
        self._path, self._flags = path, flags
        self.fd = -1
        self.start()

    def run(self) -> None:
        self.fd = os.open(self._path, self._flags, 0o644)

    def truncates(self) -> bool:
        """Return whether OPEN is answered, and the VFS is to truncate the file under its lock."""
        stack = Path(f"/proc/self/task/{self.native_id}/stack").read_text()
        return "do_truncate" in stack

    def result(self) -> int:
        self.join(60)
        assert self.fd >= 0, "open(2) hangs or failed"
        return self.fd


def create_with_held_reply(m: Mount, flags: int = 0, point: str = "after") -> Opening:
    """Let a CREATE find that its name, ``g``, is a link to the file ``f``, and hold it.

    Its reply has the size that the file has now. FUSE takes it, however old it is then.

    :param flags: more flags of open(2).
    :param point: ``"before"`` the daemon handles the CREATE, or ``"after"``.
    """
    m.hold("lookup", "after", b"g")
    m.hold("create", point, b"g")
    opening = Opening(m / "g", os.O_WRONLY | os.O_CREAT | flags)
    m.wait_held()  # the name does not exist
    m.model.hard_link("f", "g")
    m.call("inval_attributes", "f")
    m.release("lookup")
    m.wait_held()
    return opening


class Block:
    """Memory for one block of direct I/O.

    :ivar memory: the memory.
    :ivar address: its address.
    """

    def __init__(self, data: bytes = bytes(BLOCK)) -> None:
        self.memory = mmap.mmap(-1, BLOCK)
        self.memory[:] = data
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))


def half_a_buffer() -> int:
    """Return the address of two pages that are in memory, before one without any access."""
    size = ctypes.c_size_t(3 * BLOCK)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = int(_libc.mmap(ctypes.c_size_t(0), size, _NO_ACCESS, flags, -1, ctypes.c_long(0)))
    both = mmap.PROT_READ | mmap.PROT_WRITE
    assert not _libc.mprotect(ctypes.c_size_t(start), ctypes.c_size_t(2 * BLOCK), both)
    ctypes.memset(start, ord("w"), 2 * BLOCK)
    return start


class Queue:
    """A context of io_setup(2)."""

    def __init__(self) -> None:
        setup, self._destroy, self._get, self._submit = map(
            ctypes.c_long, _NUMBERS[platform.machine()]
        )
        self._context = ctypes.c_ulong(0)
        self._iocbs: list[ctypes.Array[ctypes.c_char]] = []
        assert not _libc.syscall(setup, ctypes.c_long(32), ctypes.byref(self._context))

    def submit(self, opcode: int, fd: int, address: int, size: int, offset: int) -> None:
        """Begin to read or write."""
        raw = struct.pack("=QIiHhIQQqQII", 0, 0, 0, opcode, 0, fd, address, size, offset, 0, 0, 0)
        iocb = ctypes.create_string_buffer(raw, 64)
        self._iocbs.append(iocb)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(iocb))
        assert _libc.syscall(self._submit, self._context, ctypes.c_long(1), pointers) == 1

    def results(self, most: int) -> list[int]:
        """Wait for one event; return the results of all that have come, at most *most*."""
        events = ctypes.create_string_buffer(most * 32)
        wait = struct.pack("=qq", 60, 0)
        one, limit = ctypes.c_long(1), ctypes.c_long(most)
        number = _libc.syscall(self._get, self._context, one, limit, events, wait)
        return [struct.unpack_from("=QQqq", events, 32 * n)[2] for n in range(number)]

    def close(self) -> None:
        """Wait for what is under way, and end the context."""
        assert not _libc.syscall(self._destroy, self._context)


def asynchronously(opcode: int, fd: int, address: int, size: int, offset: int) -> list[int]:
    """Read or write by io_submit(2); return the results of all events."""
    queue = Queue()
    queue.submit(opcode, fd, address, size, offset)
    results = queue.results(8)
    queue.close()
    return results


class Asynchronous:
    """Reads that are in flight, each of one block, into memory of their own."""

    def __init__(self, fd: int, blocks: int) -> None:
        self._queue = Queue()
        self._memory = mmap.mmap(-1, blocks * BLOCK)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for at in range(0, blocks * BLOCK, BLOCK):
            self._queue.submit(PREAD, fd, start + at, BLOCK, at)

    def wait(self) -> int:
        """Wait for one read; return its result."""
        (result,) = self._queue.results(1)
        return result

    def close(self) -> None:
        """Wait for all reads."""
        self._queue.close()
