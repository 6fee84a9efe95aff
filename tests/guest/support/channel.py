# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's interface of channels, used directly: efuse_channel_setup and efuse_next."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from tests.guest.support import wire
from tests.guest.support.wire import Request

FUSE_DEV_IOC_CLONE = 0x8004E500
EFUSE_IOC_CHANNEL = 0x4010E542
EFUSE_IOC_NEXT = 0xC018E543
NEXT_REPLY, NEXT_SMALL = 1, 2
NO_SLOT = 0xFFFFFFFF
REQUEST_START = mmap.PAGESIZE - 80

_SETUP = struct.Struct("=IIII")
_NEXT = struct.Struct("=IIQII")


@dataclass(frozen=True)
class Message:
    """A request and its slot in the channel; `NO_SLOT`: it was copied into the buffer instead."""

    request: Request
    slot: int


@contextlib.contextmanager
def closed_if_it_fails(fd: int) -> Iterator[None]:
    """Close a descriptor if what is done with it fails."""
    try:
        yield
    except BaseException:
        os.close(fd)
        raise


def tied(fd: int) -> int:
    """Open the device again, for the mount of *fd*."""
    other = os.open("/dev/efuse", os.O_RDWR | os.O_CLOEXEC)
    with closed_if_it_fails(other):
        fcntl.ioctl(other, FUSE_DEV_IOC_CLONE, struct.pack("=I", fd))
    return other


def make(fd: int, cpu: int, slots: int = 4, slot_size: int = 8192, flags: int = 0) -> None:
    """Make the descriptor *fd* a channel of *cpu*."""
    fcntl.ioctl(fd, EFUSE_IOC_CHANNEL, _SETUP.pack(cpu, slots, slot_size, flags))


class Channel:
    """A channel of one CPU of the mount to which *fd* belongs."""

    def __init__(self, fd: int, cpu: int, slots: int = 4, slot_size: int = 8192) -> None:
        self.fd = tied(fd)
        self.cpu = cpu
        self.slot_size = slot_size
        with closed_if_it_fails(self.fd):
            make(self.fd, cpu, slots, slot_size)
            self.memory = mmap.mmap(self.fd, 2 * slots * slot_size)
        self._of_thread = threading.local()

    def close(self) -> None:
        self.memory.close()
        os.close(self.fd)

    def next(
        self, slot: int = NO_SLOT, length: int = 0, size: int | None = None, flags: int = 0
    ) -> Message:
        """Return *slot* with a reply of *length* bytes, and wait for the next request."""
        buffer = self._buffer()
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        size = len(buffer) if size is None else size
        raw = bytearray(_NEXT.pack(slot, length, address, size, flags))
        fcntl.ioctl(self.fd, EFUSE_IOC_NEXT, raw)
        slot, length, *_ = _NEXT.unpack(raw)
        if slot == NO_SLOT:
            return Message(wire.parse(buffer[:length]), slot)
        at = 2 * slot * self.slot_size + REQUEST_START
        return Message(wire.parse(self.memory[at : at + length]), slot)

    def _buffer(self) -> mmap.mmap:
        """Return the calling thread's own buffer: several threads may wait at the same time."""
        if not hasattr(self._of_thread, "buffer"):
            self._of_thread.buffer = mmap.mmap(-1, 2 << 20)
        buffer: mmap.mmap = self._of_thread.buffer
        return buffer

    def reply(self, slot: int, length: int) -> None:
        """Send a reply of *length* bytes, without waiting for a request."""
        fcntl.ioctl(self.fd, EFUSE_IOC_NEXT, _NEXT.pack(slot, length, 0, 0, NEXT_REPLY))

    def put(self, slot: int, reply: bytes) -> int:
        """Write a reply into a slot, and return its length."""
        at = (2 * slot + 1) * self.slot_size
        self.memory[at : at + len(reply)] = reply
        return len(reply)
