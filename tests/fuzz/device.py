# SPDX-License-Identifier: LGPL-2.1-or-later
"""Call the ioctls of /dev/efuse with right, wrong and random arguments."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from random import Random

from tests.fuzz import layouts, tree
from tests.fuzz.arguments import Calls, Descriptors, Memory, part_of
from tests.fuzz.counts import Counts
from tests.fuzz.layouts import Part
from tests.fuzz.threads import Fuzzer, Shared, attempt
from tests.guest.support import wire
from tests.guest.support.channel import FUSE_DEV_IOC_CLONE, NO_SLOT, REQUEST_START, Channel

_WRITE, _TO_EOF, _SEALED, _NEW = 1, 2, 4, 8
_REPLY_ONLY, _SMALL = 1, 2
_NEXT = struct.Struct("=IIQII")
_ROOM = 2 << 20
_NOT_SLOTS = (NO_SLOT, NO_SLOT, 1 << 16, 1 << 31)
"""Numbers that no slot has."""
_NOT_BACKING_IDS = (0, 1 << 20, (1 << 31) - 1, (1 << 32) - 1)
"""Numbers that no backing file has."""
_NO_CPU = 1 << 16


class Target:
    """A mount whose device is called.

    :ivar fd: the daemon's descriptor.
    :ivar channels: its channels.
    :ivar backing: descriptors of backing files for reading and writing, by nodeid. Each is filled
        with the byte of its file.
    """

    def __init__(self, fd: int, channels: list[Channel], backing: dict[int, int]) -> None:
        self.fd, self.channels, self.backing = fd, channels, backing
        self._rooms = {c.fd: (c.slot_size, c.memory) for c in channels}

    def channel(self, fd: int) -> Channel | None:
        """Return the daemon's channel with this descriptor, or None."""
        return next((channel for channel in self.channels if channel.fd == fd), None)

    def made(self, fd: int, slots: int, slot_size: int) -> None:
        """Map the slots of a new channel."""
        with suppress(OSError, ValueError):  # Another thread may have changed the argument.
            self._rooms[fd] = slot_size, mmap.mmap(fd, 2 * slots * slot_size)

    def closed(self, fd: int) -> None:
        """Note that a descriptor is closed."""
        self._rooms.pop(fd, None)

    def request(self, fd: int, slot: int, length: int) -> bytes:
        """Return the request in a slot of a channel, or nothing if that is not known."""
        slot_size, memory = self._rooms.get(fd, (0, b""))
        at = 2 * slot * slot_size + REQUEST_START
        return bytes(memory[at : at + length])


class DeviceCaller(Fuzzer):
    """Calls ioctls until the mount ends, on descriptors of the mount and on others."""

    PAUSE_S = 0.005

    def __init__(self, shared: Shared, target: Target, chance: Random, common: Memory) -> None:
        super().__init__(shared, chance)
        self._target = target
        self.calls = Calls(chance, common)
        self._room = mmap.mmap(-1, _ROOM)
        self._descriptors = Descriptors()
        self._unmounted = os.open("/dev/efuse", os.O_RDWR | os.O_CLOEXEC)
        self._own: list[int] = []
        self._backing_ids: list[int] = []

    def add_to(self, counts: Counts) -> None:
        counts.ioctls += self.calls.made
        counts.succeeded += self.calls.succeeded
        counts.fields += self.calls.mutator.fields

    def close(self) -> None:
        """Close its descriptors. It has ended."""
        for fd in (self._unmounted, *self._own):
            os.close(fd)
        self._descriptors.close()

    def step(self) -> bool:
        name, (number, layout) = self._chance.choice([*layouts.DEVICE_IOCTLS.items()])
        arguments: Callable[[], Part] = getattr(self, f"_{name.lower()}")
        part = arguments()
        assert part.layout is layout
        fd = self._descriptor()
        if name == "FUSE_DEV_IOC_CLONE" and fd == self._unmounted and self._chance.random() < 0.5:
            # A new descriptor may get the mount.
            fd = self._opened()
            part.values["fd"] = self._target.fd
        if kept := self._kept(name, fd):
            part.values |= kept
            part.fixed |= kept.keys()
        # In memory that another thread changes, no field keeps its value.
        result = self.calls.call(fd, name, number, part, racy=not part.fixed)
        self._note(fd, name, part, result)
        if self._chance.random() < 0.05:
            self._renew()
        return True

    def _kept(self, name: str, fd: int) -> dict[str, int]:
        """Return the values of fields that a call must have, so that the mount goes on."""
        if name == "EFUSE_IOC_NEXT" and self._target.channel(fd):
            # Only the worker that has a slot may give it back: the next request would be written
            # where it reads, and it would mix the bytes of two files itself.
            return {"slot": self._chance.choice(_NOT_SLOTS)}
        if name == "EFUSE_IOC_CHANNEL" and fd == self._target.fd:
            # No worker serves a channel of this descriptor, and its requests would all fail.
            return {"cpu": _NO_CPU}
        if name == "FUSE_DEV_IOC_CLONE" and fd == self._unmounted:
            # It stays without a mount.
            return {"fd": self._chance.choice(self._descriptors.wrong)}
        return {}

    def _note(self, fd: int, name: str, part: Part, result: int) -> None:
        """Note what a call has made."""
        if name == "EFUSE_IOC_CHANNEL" and not result:
            self._target.made(fd, part.values["slots"], part.values["slot_size"])
        if name == "EFUSE_IOC_NEXT" and not result:
            self._give_up(fd)
        if name == "FUSE_DEV_IOC_BACKING_OPEN" and result > 0:
            self._backing_ids.append(result)

    def _descriptor(self) -> int:
        """Return a descriptor to call: mostly one of the mount."""
        how = self._chance.random()
        target = self._target
        if how < 0.75:
            fds: list[int] = [target.fd, *(channel.fd for channel in target.channels), *self._own]
            return self._chance.choice(fds)
        if how < 0.85:
            return self._unmounted
        return self._chance.choice(self._descriptors.wrong)

    def _opened(self) -> int:
        """Open the device again; close the oldest such descriptor if there are too many."""
        if len(self._own) > 2:
            self._close_oldest()
        self._own.append(os.open("/dev/efuse", os.O_RDWR | os.O_CLOEXEC))
        return self._own[-1]

    def _close_oldest(self) -> None:
        oldest = self._own.pop(0)
        self._target.closed(oldest)
        os.close(oldest)

    def _renew(self) -> None:
        """Open the device again for the mount, or close such a descriptor."""
        if len(self._own) > 2:
            self._close_oldest()
            return
        fd = self._opened()
        fcntl.ioctl(fd, FUSE_DEV_IOC_CLONE, struct.pack("=I", self._target.fd))

    def _nodeid(self) -> int:
        nodeids: list[int] = [*tree.FILES.values()] * 2 + [*tree.OPEN]
        return self._chance.choice(nodeids)

    # The arguments of each ioctl, which are right.

    def _fuse_dev_ioc_clone(self) -> Part:
        fd = self._chance.choice((self._target.fd, *self._descriptors.wrong))
        return part_of(layouts.DEVICE_IOCTLS["FUSE_DEV_IOC_CLONE"][1], fd=fd)

    def _fuse_dev_ioc_backing_open(self) -> Part:
        fds = [*self._target.backing.values()] or self._descriptors.wrong
        layout = layouts.DEVICE_IOCTLS["FUSE_DEV_IOC_BACKING_OPEN"][1]
        return part_of(layout, fd=self._chance.choice((*fds, *self._descriptors.wrong)))

    def _fuse_dev_ioc_backing_close(self) -> Part:
        """Close a backing file of this thread, perhaps again, or one that does not exist.

        The daemon's own ones stay open, so that FUSE's passthrough goes on.
        """
        layout = layouts.DEVICE_IOCTLS["FUSE_DEV_IOC_BACKING_CLOSE"][1]
        ids = self._backing_ids[-8:] or _NOT_BACKING_IDS
        part = part_of(layout, backing_id=self._chance.choice((*ids, *_NOT_BACKING_IDS)))
        part.fixed = frozenset(("backing_id",))
        return part

    def _efuse_ioc_map(self) -> Part:
        """Map a file to a backing file that has its bytes, or to a descriptor that has none."""
        nodeid = self._nodeid()
        fd = self._target.backing.get(nodeid, -1)
        if fd < 0 or self._chance.random() < 0.2:
            fd = self._chance.choice(self._descriptors.wrong)
        flags = self._chance.choice((0, _WRITE, _TO_EOF, _WRITE | _TO_EOF, _SEALED, _NEW))
        length = 0 if flags & _TO_EOF else 4096 * self._chance.randrange(1, 5)
        layout = layouts.DEVICE_IOCTLS["EFUSE_IOC_MAP"][1]
        part = part_of(layout, nodeid=nodeid, length=length, version=1, fd=fd, flags=flags)
        # The daemon never maps a file to the bytes of another one.
        part.fixed = frozenset(("nodeid", "fd"))
        return part

    def _efuse_ioc_unmap(self) -> Part:
        layout = layouts.DEVICE_IOCTLS["EFUSE_IOC_UNMAP"][1]
        return part_of(layout, nodeid=self._nodeid(), length=self._chance.choice((0, 4096)))

    def _efuse_ioc_channel(self) -> Part:
        layout = layouts.DEVICE_IOCTLS["EFUSE_IOC_CHANNEL"][1]
        return part_of(layout, cpu=self._chance.randrange(3), slots=2, slot_size=8192)

    def _efuse_ioc_next(self) -> Part:
        slot = self._chance.choice((NO_SLOT, NO_SLOT, *range(8)))
        length = self._chance.choice((0, 0, 16, 120, 8192, 8193))
        flags = self._chance.choice((0, 0, _REPLY_ONLY, _SMALL))
        buffer = ctypes.addressof(ctypes.c_char.from_buffer(self._room))
        layout = layouts.DEVICE_IOCTLS["EFUSE_IOC_NEXT"][1]
        return part_of(layout, slot=slot, length=length, buffer=buffer, size=_ROOM, flags=flags)

    def _efuse_ioc_takeover(self) -> Part:
        """Take over what is no mount. `Successor` has a mount that can be taken over."""
        layout = layouts.DEVICE_IOCTLS["EFUSE_IOC_TAKEOVER"][1]
        fd = self._chance.choice((self._target.fd, *self._descriptors.wrong))
        return part_of(layout, fd=fd)

    def _give_up(self, fd: int) -> None:
        """Fail the request that EFUSE_IOC_NEXT brought, if it is known where it is.

        A slot of the daemon's channel is given back.
        """
        slot, length, _, _, flags = _NEXT.unpack(self.calls.memory.get(_NEXT.size))
        if flags == _REPLY_ONLY or length > _ROOM:
            return
        raw = self._room[:length] if slot == NO_SLOT else self._target.request(fd, slot, length)
        with suppress(struct.error):  # It was not the thread's own memory that was used.
            reply = wire.reply(wire.parse(raw).unique, errno.EIO)
            attempt(lambda: os.write(fd, reply))
        channel = self._target.channel(fd)
        if channel and slot != NO_SLOT:
            attempt(lambda: channel.reply(slot, 0))
