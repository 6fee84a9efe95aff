# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open files and directory streams: those the daemon opened, and those the kernel opened itself."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import ClassVar

from efuse.fs.passthrough.inodes import Inodes, Node
from efuse.fs.passthrough.syscalls import (
    DirectoryEntry,
    getdents,
    next_position,
)

__all__ = ["Files", "Stream", "Streams", "reopen"]

_FIRST_HANDLE = 1 << 63
"""Handles have the highest bit, no inode number has: neither is mistaken for the other."""
_FIRST_KEPT = 3 << 62
"""A handle with the two highest bits: the kernel does not open that directory by itself."""
_EXT, _TMPFS = 0xEF53, 0x01021994
_POSITIONS_LAST = frozenset({_EXT, _TMPFS})
"""File systems (f_type of statfs(2)) where a position in a directory outlives the open file.

In ext2, ext3 and ext4 it is a hash of the next entry's name, or a place that is checked; in tmpfs a
number of the next entry that no other gets. Not overlayfs: it numbers the entries that are there
when an open directory is first read. Not FUSE: its daemons may do so.
"""
_TMPFS_FIRST, _TMPFS_END = 3, (1 << 31) - 1


def reopen(fd: int, flags: int) -> int:
    """Open the inode of a descriptor with *flags*.

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
        self._opened: dict[int, tuple[int, Node | None]] = {}
        self._lazy: OrderedDict[tuple[int, bool], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._opened)

    def add(self, fd: int, node: Node | None = None) -> int:
        """Give *fd*, an open file of *node*, a handle. None: of no node that can be found."""
        handle = next(self._numbers)
        self._opened[handle] = fd, node
        if node is not None:
            self._inodes.opened(node, fd)
        return handle

    def opened(self, handle: int) -> int | None:
        """Return the descriptor of a file that the daemon opened, None if the kernel did."""
        fd, _ = self._opened.get(handle, (None, None))
        return fd

    def get(self, handle: int, *, write: bool = False) -> int:
        """Return a descriptor for reading, or for writing, by *handle*.

        :raises KeyError: neither a handle nor an inode.
        :raises OSError: the file cannot be opened.
        """
        fd = self.opened(handle)
        if fd is not None:
            return fd
        key = (handle, write)
        fd = self._lazy.get(key)
        if fd is not None:
            self._lazy.move_to_end(key)
            return fd
        node = self._inodes.node(handle)
        if write:
            self._inodes.check_writable(node)
        fd = reopen(self._inodes.fd(node), os.O_WRONLY if write else os.O_RDONLY)
        self._lazy[key] = fd
        if len(self._lazy) > self._limit:
            os.close(self._lazy.popitem(last=False)[1])
        return fd

    def release(self, handle: int) -> None:
        """Close a file that the daemon opened."""
        fd, node = self._opened.pop(handle, (None, None))
        if fd is None:
            return
        if node is not None:
            self._inodes.closed(node, fd)
        os.close(fd)

    def forget(self, nodeid: int) -> None:
        """Close what was opened for an inode that the kernel no longer knows."""
        for write in (False, True):
            fd = self._lazy.pop((nodeid, write), None)
            if fd is not None:
                os.close(fd)

    def close(self) -> None:
        """Close everything."""
        for fd in (*(fd for fd, _ in self._opened.values()), *self._lazy.values()):
            os.close(fd)
        self._opened.clear()
        self._lazy.clear()


@dataclass
class Stream:
    """An open directory being read, with the entries read ahead.

    ``position`` is where its reader is: behind the last entry that was replied. ``failure`` is an
    error that was met there and that the reader is to be told.
    """

    node: Node
    fd: int
    kind: int = 0
    position: int = 0
    ahead: list[DirectoryEntry] = field(default_factory=list)
    failure: OSError | None = None

    tmpfs_falls: ClassVar[bool] = False
    """Whether this kernel's tmpfs lists the newest entry first, which has the highest position."""

    def seek(self, position: int) -> None:
        """Go to *position*, which is 0 or was an entry's."""
        if position != self.position or position == 0:
            os.lseek(self.fd, position, os.SEEK_SET)
            self.ahead.clear()
            self.failure = None
            self.position = position

    def _begins_again(self) -> bool:
        """Tell whether tmpfs goes back to its first entry: it does where none is left to come."""
        if self.kind != _TMPFS or not Stream.tmpfs_falls:
            return False
        here = os.lseek(self.fd, 0, os.SEEK_CUR)
        return _TMPFS_FIRST <= here < next_position(self.fd) < _TMPFS_END

    def peek(self) -> DirectoryEntry | None:
        """Return the next entry, or None at the end.

        :raises OSError: the directory cannot be read; or could not before, see ``failure``.
        """
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        if not self.ahead:
            if self._begins_again():
                os.lseek(self.fd, _TMPFS_END, os.SEEK_SET)
            self.ahead = getdents(self.fd)
            if self.kind == _TMPFS and len(self.ahead) > len((".", "..", "a", "b")):
                Stream.tmpfs_falls = self.ahead[-3][0] > self.ahead[-2][0]
            self.ahead.reverse()
        return self.ahead[-1] if self.ahead else None

    def advance(self) -> None:
        """Go behind the entry that :meth:`peek` returned, which was replied."""
        self.position = self.ahead.pop()[0]

    def skip(self) -> None:
        """Leave out the entry that :meth:`peek` returned; the reader does not learn of it."""
        self.ahead.pop()


class Streams:
    """Directory streams by handle, or by inode and position where the kernel opened them.

    The kernel may open a directory by itself only where a position means the same to each stream:
    then any stream goes on where another stopped. Elsewhere each open directory has a stream of its
    own from its opening to its closing.
    """

    def __init__(self, inodes: Inodes, lazy: int) -> None:
        self._inodes = inodes
        self._limit = max(8, lazy)
        self._numbers = itertools.count()
        self._opened: dict[int, Stream] = {}
        self._lazy: OrderedDict[tuple[int, int], Stream] = OrderedDict()

    def open(self, node: Node) -> Stream:
        """Open a stream of the directory *node*.

        :raises OSError: it cannot be opened.
        """
        fd = reopen(self._inodes.fd(node), os.O_RDONLY | os.O_DIRECTORY)
        return Stream(node, fd, node.mount.kind)

    def add(self, stream: Stream) -> int:
        """Give *stream* a handle."""
        lasting = stream.kind in _POSITIONS_LAST
        handle = next(self._numbers) + (_FIRST_HANDLE if lasting else _FIRST_KEPT)
        self._opened[handle] = stream
        self._inodes.opened(stream.node, stream.fd)
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
            self._inodes.closed(stream.node, stream.fd)
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
