# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open lower files and directory streams, for opens by the daemon and by the kernel itself."""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import ClassVar

from efuse.fs.passthrough.inodes import Inodes, Node
from efuse.fs.passthrough.stacking import EXT, TMPFS
from efuse.fs.passthrough.syscalls import (
    DirectoryEntry,
    getdents,
    next_position,
)

__all__ = ["Files", "Stream", "Streams", "reopen"]

_FIRST_HANDLE = 1 << 63
"""The highest bit is set in each handle and in no inode number, so they cannot be confused."""
_FIRST_KEPT = 3 << 62
"""A handle with the two highest bits set forbids the kernel to open the directory by itself."""
_POSITIONS_LAST = frozenset({EXT, TMPFS})
"""File systems (f_type of statfs(2)) on which a directory position outlives the open directory.

On ext2, ext3 and ext4 a position is a hash of the next entry's name, or an offset that is checked.
On tmpfs it is a number of the next entry that no other entry gets. overlayfs is missing because it
numbers the entries when an open directory is first read, and FUSE because its daemons may do so.
"""
_TMPFS_FIRST, _TMPFS_END = 3, (1 << 31) - 1


def reopen(fd: int, flags: int) -> int:
    """Open the inode of the descriptor *fd* again, with *flags*.

    :raises OSError: the inode cannot be opened with these flags.
    """
    return os.open(b"/proc/self/fd/%d" % fd, flags | os.O_CLOEXEC)


class Files:
    """The descriptors of open files, by file handle.

    A handle that is an inode's number belongs to a file that the kernel opened by itself. Such a
    file gets a descriptor for reading and one for writing, each at its first use. They are closed
    when the inode is forgotten, or earlier if they are not among the *lazy* most recently used.

    :param inodes: the nodes of the files.
    :param lazy: largest number of descriptors of files that the kernel opened by itself.
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
        """Return a handle for *fd*, which this object then owns.

        :param node: node of the open file; None if the inode cannot be found any more.
        """
        handle = next(self._numbers)
        self._opened[handle] = fd, node
        if node is not None:
            self._inodes.opened(node, fd)
        return handle

    def opened(self, handle: int) -> int | None:
        """Return the descriptor of a file that the daemon opened; None if the kernel opened it."""
        fd, _ = self._opened.get(handle, (None, None))
        return fd

    def get(self, handle: int, *, write: bool = False) -> int:
        """Return a descriptor for reading, or with *write* for writing.

        :raises KeyError: *handle* is neither a handle nor an inode's number.
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
        """Close the descriptors of an inode that the kernel has forgotten."""
        for write in (False, True):
            fd = self._lazy.pop((nodeid, write), None)
            if fd is not None:
                os.close(fd)

    def close(self) -> None:
        """Close all descriptors."""
        for fd in (*(fd for fd, _ in self._opened.values()), *self._lazy.values()):
            os.close(fd)
        self._opened.clear()
        self._lazy.clear()


@dataclass
class Stream:
    """An open directory that is being read, with the entries that were read ahead.

    :ivar node: node of the directory.
    :ivar fd: descriptor of the open directory.
    :ivar kind: type of its file system, see :func:`file_system_type`.
    :ivar position: position of the reader, behind the last entry that was replied.
    :ivar ahead: entries that were read but not replied, the last one first.
    :ivar failure: error at this position that the reader has not been told yet.
    """

    node: Node
    fd: int
    kind: int = 0
    position: int = 0
    ahead: list[DirectoryEntry] = field(default_factory=list)
    failure: OSError | None = None

    tmpfs_falls: ClassVar[bool] = False
    """Whether this kernel's tmpfs lists the newest entry first, so that positions decrease."""

    def seek(self, position: int) -> None:
        """Go to *position*, which is 0 or the position of an earlier entry."""
        if position != self.position or position == 0:
            os.lseek(self.fd, position, os.SEEK_SET)
            self.ahead.clear()
            self.failure = None
            self.position = position

    def _begins_again(self) -> bool:
        """Tell whether tmpfs would start again at its first entry.

        A tmpfs with decreasing positions does so after the last entry.
        """
        if self.kind != TMPFS or not Stream.tmpfs_falls:
            return False
        here = os.lseek(self.fd, 0, os.SEEK_CUR)
        return _TMPFS_FIRST <= here < next_position(self.fd) < _TMPFS_END

    def peek(self) -> DirectoryEntry | None:
        """Return the next entry, or None at the end.

        :raises OSError: the directory cannot be read, or there is a ``failure``.
        """
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        if not self.ahead:
            if self._begins_again():
                os.lseek(self.fd, _TMPFS_END, os.SEEK_SET)
            self.ahead = getdents(self.fd)
            if self.kind == TMPFS and len(self.ahead) > len((".", "..", "a", "b")):
                Stream.tmpfs_falls = self.ahead[-3][0] > self.ahead[-2][0]
            self.ahead.reverse()
        return self.ahead[-1] if self.ahead else None

    def advance(self) -> None:
        """Go behind the entry that :meth:`peek` returned, after it was replied."""
        self.position = self.ahead.pop()[0]

    def skip(self) -> None:
        """Skip the entry that :meth:`peek` returned, so that the reader never gets it."""
        self.ahead.pop()


class Streams:
    """The directory streams, by handle, or by inode and position if the kernel opened them.

    The kernel may open a directory by itself only if a position means the same in every stream, so
    that one stream can go on where another one stopped. On other file systems each open directory
    has a stream of its own until it is closed.

    :param inodes: the nodes of the directories.
    :param lazy: largest number of streams of directories that the kernel opened by itself.
    """

    def __init__(self, inodes: Inodes, lazy: int) -> None:
        self._inodes = inodes
        self._limit = max(8, lazy)
        self._numbers = itertools.count()
        self._opened: dict[int, Stream] = {}
        self._lazy: OrderedDict[tuple[int, int], Stream] = OrderedDict()

    def open(self, node: Node) -> Stream:
        """Open a stream of the directory *node*.

        :raises OSError: the directory cannot be opened.
        """
        fd = reopen(self._inodes.fd(node), os.O_RDONLY | os.O_DIRECTORY)
        return Stream(node, fd, node.mount.kind)

    def add(self, stream: Stream) -> int:
        """Return a handle for *stream*, which this object then owns."""
        lasting = stream.kind in _POSITIONS_LAST
        handle = next(self._numbers) + (_FIRST_HANDLE if lasting else _FIRST_KEPT)
        self._opened[handle] = stream
        self._inodes.opened(stream.node, stream.fd)
        return handle

    def take(self, handle: int, position: int) -> Stream:
        """Return the stream of *handle* at *position*. Give it back with :meth:`put`.

        :raises KeyError: *handle* is neither a handle nor an inode's number.
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
        """Give back the stream that :meth:`take` returned.

        :param ended: whether the stream was read to its end.
        """
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
        """Return the stream of a directory that the daemon opened, None if the kernel opened it."""
        return self._opened.get(handle)

    def release(self, handle: int) -> None:
        """Close a directory that the daemon opened."""
        stream = self._opened.pop(handle, None)
        if stream is not None:
            self._inodes.closed(stream.node, stream.fd)
            os.close(stream.fd)

    def forget(self, nodeid: int) -> None:
        """Close the streams of an inode that the kernel has forgotten."""
        for key in [key for key in self._lazy if key[0] == nodeid]:
            os.close(self._lazy.pop(key).fd)

    def close(self) -> None:
        """Close all streams."""
        for stream in (*self._opened.values(), *self._lazy.values()):
            os.close(stream.fd)
        self._opened.clear()
        self._lazy.clear()
