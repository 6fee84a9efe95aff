# SPDX-License-Identifier: LGPL-2.1-or-later
"""A model of a test's file system in memory, and the nodeids that the kernel knows."""

from __future__ import annotations

import errno
import stat
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
ROOT = 1


@dataclass
class Inode:
    """A file. Its times come from a clock that every change advances."""

    ino: int
    mode: int
    uid: int = 0
    gid: int = 0
    rdev: int = 0
    nlink: int = 1
    atime_ns: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    data: bytearray = field(default_factory=bytearray)
    target: bytes = b""
    entries: dict[bytes, int] = field(default_factory=dict)
    xattrs: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.target) if stat.S_ISLNK(self.mode) else len(self.data)


def fail(number: int) -> OSError:
    return OSError(number, errno.errorcode[number])


class ModelFileSystem:
    """The true state of the file system: inodes by number. Inode 1 is the root directory."""

    def __init__(self) -> None:
        self._clock_ns = 10**18
        self._last = ROOT
        self.inodes: dict[int, Inode] = {ROOT: Inode(ROOT, stat.S_IFDIR | 0o755, nlink=2)}

    def tick(self) -> int:
        """Return a time in ns that is later than all earlier ones."""
        self._clock_ns += 1000
        return self._clock_ns

    def changed(self, inode: Inode, *, content: bool = False) -> None:
        inode.ctime_ns = self.tick()
        if content:
            inode.mtime_ns = inode.ctime_ns

    def get(self, ino: int) -> Inode:
        try:
            return self.inodes[ino]
        except KeyError:
            raise fail(errno.ESTALE) from None

    def child(self, parent: int, name: bytes) -> Inode:
        directory = self.get(parent)
        if not stat.S_ISDIR(directory.mode):
            raise fail(errno.ENOTDIR)
        if name not in directory.entries:
            raise fail(errno.ENOENT)
        return self.get(directory.entries[name])

    def walk(self, path: str | bytes) -> Inode:
        """Return the inode at a path from the root."""
        inode = self.get(ROOT)
        for name in (path if isinstance(path, bytes) else path.encode()).split(b"/"):
            if name:
                inode = self.child(inode.ino, name)
        return inode

    def make(
        self, parent: int, name: bytes, mode: int, *, uid: int = 0, gid: int = 0, rdev: int = 0
    ) -> Inode:
        directory = self.get(parent)
        if name in directory.entries:
            raise fail(errno.EEXIST)
        self._last += 1
        inode = Inode(self._last, mode, uid, gid, rdev)
        inode.atime_ns = inode.mtime_ns = inode.ctime_ns = self.tick()
        if stat.S_ISDIR(mode):
            inode.nlink = 2
            directory.nlink += 1
        self.inodes[inode.ino] = inode
        directory.entries[name] = inode.ino
        self.changed(directory, content=True)
        return inode

    def link(self, ino: int, parent: int, name: bytes) -> Inode:
        directory, inode = self.get(parent), self.get(ino)
        if name in directory.entries:
            raise fail(errno.EEXIST)
        directory.entries[name] = ino
        inode.nlink += 1
        self.changed(inode)
        self.changed(directory, content=True)
        return inode

    def unlink(self, parent: int, name: bytes, *, directory: bool = False) -> None:
        inode = self.child(parent, name)
        if stat.S_ISDIR(inode.mode) != directory:
            raise fail(errno.ENOTDIR if directory else errno.EISDIR)
        if inode.entries:
            raise fail(errno.ENOTEMPTY)
        self._drop(parent, name)

    def _drop(self, parent: int, name: bytes) -> None:
        above = self.get(parent)
        inode = self.get(above.entries.pop(name))
        inode.nlink -= 1
        if stat.S_ISDIR(inode.mode):
            inode.nlink = 0
            above.nlink -= 1
        self.changed(inode)
        self.changed(above, content=True)

    def rename(
        self, old_parent: int, old: bytes, new_parent: int, new: bytes, flags: int = 0
    ) -> None:
        moved = self.child(old_parent, old)
        source, target = self.get(old_parent), self.get(new_parent)
        there = target.entries.get(new)
        if flags & RENAME_EXCHANGE:
            if there is None:
                raise fail(errno.ENOENT)
            source.entries[old], target.entries[new] = there, moved.ino
            other = self.get(there)
            self._moved(other, target, source)
            self.changed(other)
        else:
            if there is not None:
                if flags & RENAME_NOREPLACE:
                    raise fail(errno.EEXIST)
                if there == moved.ino:
                    return
                if self.get(there).entries:
                    raise fail(errno.ENOTEMPTY)
                self._drop(new_parent, new)
            del source.entries[old]
            target.entries[new] = moved.ino
        self._moved(moved, source, target)
        for inode in (moved, source, target):
            self.changed(inode, content=inode is not moved)

    @staticmethod
    def _moved(inode: Inode, source: Inode, target: Inode) -> None:
        if stat.S_ISDIR(inode.mode):
            source.nlink -= 1
            target.nlink += 1

    def write(self, ino: int, offset: int, data: bytes) -> None:
        inode = self.get(ino)
        if len(inode.data) < offset:
            inode.data.extend(bytes(offset - len(inode.data)))
        inode.data[offset : offset + len(data)] = data
        self.changed(inode, content=True)

    def truncate(self, ino: int, size: int) -> None:
        inode = self.get(ino)
        del inode.data[size:]
        inode.data.extend(bytes(size - len(inode.data)))
        self.changed(inode, content=True)

    # Methods by path, for changes that a test makes behind the kernel's back.

    def create(self, path: str, data: bytes = b"", mode: int = stat.S_IFREG | 0o644) -> int:
        above, _, name = path.rpartition("/")
        inode = self.make(self.walk(above).ino, name.encode(), mode)
        inode.data[:] = data
        return inode.ino

    def mkdir(self, path: str) -> int:
        return self.create(path, mode=stat.S_IFDIR | 0o755)

    def symlink(self, path: str, target: bytes) -> int:
        ino = self.create(path, mode=stat.S_IFLNK | 0o777)
        self.get(ino).target = target
        return ino

    def hard_link(self, old: str, new: str) -> None:
        above, _, name = new.rpartition("/")
        self.link(self.walk(old).ino, self.walk(above).ino, name.encode())

    def put(self, path: str, data: bytes) -> None:
        inode = self.walk(path)
        inode.data[:] = data
        self.changed(inode, content=True)

    def set_times(self, path: str, mtime_ns: int, ctime_ns: int) -> None:
        """Set both times, which nothing but a daemon can do."""
        inode = self.walk(path)
        inode.mtime_ns, inode.ctime_ns = mtime_ns, ctime_ns

    def set_mode(self, path: str, mode: int) -> None:
        inode = self.walk(path)
        inode.mode = mode
        self.changed(inode)

    def set_xattr(self, path: str, name: bytes, value: bytes | None) -> None:
        inode = self.walk(path)
        if value is None:
            inode.xattrs.pop(name, None)
        else:
            inode.xattrs[name] = value
        self.changed(inode)

    def move(self, old: str, new: str, flags: int = 0) -> None:
        places = []
        for path in (old, new):
            above, _, name = path.rpartition("/")
            places += [self.walk(above).ino, name.encode()]
        self.rename(*places, flags)  # type: ignore[arg-type]

    def remove(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        directory = stat.S_ISDIR(self.walk(path).mode)
        self.unlink(self.walk(above).ino, name.encode(), directory=directory)


class Nodeids:
    """The nodeid by which the kernel knows each file, and its lookup count.

    A nodeid is the file's number, always. With *reuse*, the nodeid of a forgotten file goes to the
    next new file, with another generation unless there is only *one_generation*, 1. With
    *per_name*, each name of a file has its own nodeid, as in a path-based daemon.
    """

    def __init__(
        self, *, reuse: bool, per_name: bool = False, one_generation: bool = False
    ) -> None:
        self._reuse = reuse
        self._per_name = per_name
        self._one_generation = one_generation
        self._free: list[int] = []
        self._next = ROOT + 1
        self._generation = 0
        self._of: dict[Hashable, tuple[int, int]] = {ROOT: (ROOT, 0)}
        self._ino = {ROOT: ROOT}
        self._key: dict[int, Hashable] = {}
        self.counts: Counter[int] = Counter()
        self.lowest = 0
        self.reused = 0

    def ino(self, nodeid: int) -> int:
        if not self._reuse and not self._per_name:
            return nodeid
        try:
            return self._ino[nodeid]
        except KeyError:
            raise fail(errno.ESTALE) from None

    def known(self, ino: int, place: tuple[int, bytes] | None = None) -> int:
        """Return the nodeid of a file, or of one of its names, or 0 if the kernel does not know it.

        :param place: nodeid of the directory and name; with *per_name*, None stands for the root.
        """
        return self._of.get(place if self._per_name and place else ino, (0, 0))[0]

    def grant(self, ino: int, place: tuple[int, bytes] | None = None) -> tuple[int, int]:
        """Count a lookup of a file; return its nodeid and generation.

        :param place: nodeid of the directory and name by which the file was found.
        """
        key: Hashable = place if self._per_name and place else ino
        if key not in self._of:
            nodeid = ino
            if self._reuse or self._per_name:
                if self._reuse and self._free:
                    nodeid = self._free.pop()
                    self.reused += 1
                else:
                    nodeid, self._next = self._next, self._next + 1
                self._generation = 1 if self._one_generation else self._generation + 1
            self._of[key] = nodeid, self._generation
            self._ino[nodeid] = ino
            self._key[nodeid] = key
        nodeid, generation = self._of[key]
        self.counts[nodeid] += 1
        return nodeid, generation

    def forget(self, nodeid: int, lookups: int) -> None:
        if nodeid == ROOT:
            return
        self.counts[nodeid] -= lookups
        self.lowest = min(self.lowest, self.counts[nodeid])
        if self.counts[nodeid] <= 0:
            if not self.counts[nodeid]:
                del self.counts[nodeid]
            if self._ino.pop(nodeid, None) is not None:
                del self._of[self._key.pop(nodeid)]
                self._free.append(nodeid)

    def moved(self, old: tuple[int, bytes], new: tuple[int, bytes] | None) -> None:
        """Give a name's nodeid to the name *new*, or to no name; only with *per_name*."""
        if not self._per_name or old == new:
            return
        if new:
            self.moved(new, None)
        if old in self._of:
            nodeid, generation = self._of.pop(old)
            key: Hashable = new or ("unnamed", nodeid)
            self._of[key] = nodeid, generation
            self._key[nodeid] = key

    def exchanged(self, one: tuple[int, bytes], other: tuple[int, bytes]) -> None:
        """Exchange the nodeids of two names; only with *per_name*."""
        aside = (0, b"")
        self.moved(one, aside)
        self.moved(other, one)
        self.moved(aside, other)

    def lose(self, nodeid: int) -> None:
        """Lose a nodeid that the kernel still holds, as a faulty daemon does."""
        del self._ino[nodeid], self._of[self._key.pop(nodeid)]
