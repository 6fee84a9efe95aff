# SPDX-License-Identifier: LGPL-2.1-or-later
"""A channel as the kernel offers it: struct efuse_channel_setup and struct efuse_next by hand."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass

from tests.guest import wire
from tests.guest.wire import Request

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
    """A request, and the slot that it lies in; `NO_SLOT`: it came in the buffer."""

    request: Request
    slot: int


def tied(fd: int) -> int:
    """Open the device once more, for the mount of *fd*."""
    other = os.open("/dev/efuse", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(other, FUSE_DEV_IOC_CLONE, struct.pack("=I", fd))
    return other


def make(fd: int, cpu: int, slots: int = 4, slot_size: int = 8192, flags: int = 0) -> None:
    """Make a descriptor a channel."""
    fcntl.ioctl(fd, EFUSE_IOC_CHANNEL, _SETUP.pack(cpu, slots, slot_size, flags))


class Channel:
    """The channel of a CPU of the mount that *fd* belongs to."""

    def __init__(self, fd: int, cpu: int, slots: int = 4, slot_size: int = 8192) -> None:
        self.fd = tied(fd)
        self.cpu = cpu
        self.slot_size = slot_size
        make(self.fd, cpu, slots, slot_size)
        self.memory = mmap.mmap(self.fd, 2 * slots * slot_size)
        self._buffer = mmap.mmap(-1, 2 << 20)

    def close(self) -> None:
        self.memory.close()
        os.close(self.fd)

    def next(
        self, slot: int = NO_SLOT, length: int = 0, size: int | None = None, flags: int = 0
    ) -> Message:
        """Give *slot* back with a reply of *length* bytes; wait for a request."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        size = len(self._buffer) if size is None else size
        raw = bytearray(_NEXT.pack(slot, length, address, size, flags))
        fcntl.ioctl(self.fd, EFUSE_IOC_NEXT, raw)
        slot, length, *_ = _NEXT.unpack(raw)
        if slot == NO_SLOT:
            return Message(wire.parse(self._buffer[:length]), slot)
        at = 2 * slot * self.slot_size + REQUEST_START
        return Message(wire.parse(self.memory[at : at + length]), slot)

    def reply(self, slot: int, length: int) -> None:
        """Deliver a reply of *length* bytes, and nothing else."""
        fcntl.ioctl(self.fd, EFUSE_IOC_NEXT, _NEXT.pack(slot, length, 0, 0, NEXT_REPLY))

    def put(self, slot: int, reply: bytes) -> int:
        """Write a reply into a slot; return its length."""
        at = (2 * slot + 1) * self.slot_size
        self.memory[at : at + len(reply)] = reply
        return len(reply)
