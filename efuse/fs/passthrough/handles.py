# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open files and directory streams: those the daemon opened, and those the kernel opened itself."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from dataclasses import dataclass, field

from efuse.fs.passthrough.inodes import Inodes, Node
from efuse.fs.passthrough.syscalls import DirectoryEntry, getdents

__all__ = ["Files", "Stream", "Streams"]

_FIRST_HANDLE = 1 << 63
"""Handles have the highest bit, no inode number has: neither is mistaken for the other."""


def reopen(fd: int, flags: int) -> int:
    """Open the inode of an O_PATH descriptor with *flags*.

    :raises OSError: it cannot be opened so.
    """
    return os.open(b"/proc/self/fd/%d" % fd, flags | os.O_CLOEXEC)


class Files:
    """Descriptors by file handle.

    A handle that is an inode's number belongs to a file that the kernel opened by itself: the
    descriptor is opened when it is needed, one for reading and one for writing, kept among the
    last *lazy* used ones, and closed at the latest when the inode is forgotten.
    """

    def __init__(self, inodes: Inodes, lazy: int) -> None:
        self._inodes = inodes
        self._limit = max(8, lazy)
        self._numbers = itertools.count(_FIRST_HANDLE)
        self._opened: dict[int, int] = {}
        self._lazy: OrderedDict[tuple[int, bool], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._opened)

    def add(self, fd: int) -> int:
        """Give *fd* a handle."""
        handle = next(self._numbers)
        self._opened[handle] = fd
        return handle

    def opened(self, handle: int) -> int | None:
        """Return the descriptor of a file that the daemon opened, None if the kernel did."""
        return self._opened.get(handle)

    def get(self, handle: int, *, write: bool = False) -> int:
        """Return a descriptor for reading, or for writing, by *handle*.

        :raises KeyError: neither a handle nor an inode.
        :raises OSError: the file cannot be opened.
        """
        fd = self._opened.get(handle)
        if fd is not None:
            return fd
        key = (handle, write)
        fd = self._lazy.get(key)
        if fd is not None:
            self._lazy.move_to_end(key)
            return fd
        node = self._inodes.node(handle)
        fd = reopen(self._inodes.fd(node), os.O_WRONLY if write else os.O_RDONLY)
        self._lazy[key] = fd
        if len(self._lazy) > self._limit:
            os.close(self._lazy.popitem(last=False)[1])
        return fd

    def release(self, handle: int) -> None:
        """Close a file that the daemon opened."""
        fd = self._opened.pop(handle, None)
        if fd is not None:
            os.close(fd)

    def forget(self, nodeid: int) -> None:
        """Close what was opened for an inode that the kernel no longer knows."""
        for write in (False, True):
            fd = self._lazy.pop((nodeid, write), None)
            if fd is not None:
                os.close(fd)

    def close(self) -> None:
        """Close everything."""
        for fd in (*self._opened.values(), *self._lazy.values()):
            os.close(fd)
        self._opened.clear()
        self._lazy.clear()


@dataclass
class Stream:
    """An open directory being read, with the entries read ahead."""

    node: Node
    fd: int
    position: int = 0
    ahead: list[DirectoryEntry] = field(default_factory=list)

    def seek(self, position: int) -> None:
        """Go to *position*, which is 0 or was an entry's."""
        if position != self.position or position == 0:
            os.lseek(self.fd, position, os.SEEK_SET)
            self.ahead.clear()
            self.position = position

    def peek(self) -> DirectoryEntry | None:
        """Return the next entry, or None at the end.

        :raises OSError: the directory cannot be read.
        """
        if not self.ahead:
            self.ahead = getdents(self.fd)
            self.ahead.reverse()
        return self.ahead[-1] if self.ahead else None

    def advance(self) -> None:
        """Go behind the entry that :meth:`peek` returned."""
        self.position = self.ahead.pop()[0]


class Streams:
    """Directory streams by handle, or by inode and position where the kernel opened them."""

    def __init__(self, inodes: Inodes, lazy: int) -> None:
        self._inodes = inodes
        self._limit = max(8, lazy)
        self._numbers = itertools.count(_FIRST_HANDLE)
        self._opened: dict[int, Stream] = {}
        self._lazy: OrderedDict[tuple[int, int], Stream] = OrderedDict()

    def open(self, node: Node) -> Stream:
        """Open a stream of the directory *node*.

        :raises OSError: it cannot be opened.
        """
        fd = reopen(self._inodes.fd(node), os.O_RDONLY | os.O_DIRECTORY)
        return Stream(node, fd)

    def add(self, stream: Stream) -> int:
        """Give *stream* a handle."""
        handle = next(self._numbers)
        self._opened[handle] = stream
        return handle

    def take(self, handle: int, position: int) -> Stream:
        """Return the stream of *handle* at *position*; give it back with :meth:`put`.

        :raises KeyError: neither a handle nor an inode.
        :raises OSError: the directory cannot be opened.
        """
        stream = self._opened.get(handle)
        if stream is None:
            stream = self._lazy.pop((handle, position), None)
        if stream is None:
            stream = self.open(self._inodes.node(handle))
        stream.seek(position)
        return stream

    def put(self, handle: int, stream: Stream, *, ended: bool) -> None:
        """Give back what :meth:`take` returned; *ended*: it was read to its end."""
        if handle in self._opened:
            return
        if ended:
            os.close(stream.fd)
            return
        earlier = self._lazy.pop((handle, stream.position), None)
        if earlier is not None:
            os.close(earlier.fd)
        self._lazy[(handle, stream.position)] = stream
        if len(self._lazy) > self._limit:
            os.close(self._lazy.popitem(last=False)[1].fd)

    def get(self, handle: int) -> Stream | None:
        """Return the stream of a directory that the daemon opened."""
        return self._opened.get(handle)

    def release(self, handle: int) -> None:
        """Close a directory that the daemon opened."""
        stream = self._opened.pop(handle, None)
        if stream is not None:
            os.close(stream.fd)

    def forget(self, nodeid: int) -> None:
        """Close what was opened for an inode that the kernel no longer knows."""
        for key in [key for key in self._lazy if key[0] == nodeid]:
            os.close(self._lazy.pop(key).fd)

    def close(self) -> None:
        """Close everything."""
        for stream in (*self._opened.values(), *self._lazy.values()):
            os.close(stream.fd)
        self._opened.clear()
        self._lazy.clear()
