# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file system without state, and the right reply to each request.

Each file is filled with one byte value of its own, see `byte_of`. Some names are *settled*: they
always lead to the same file, whatever else a reply about them says, so that a reader knows which
byte it has to find. What all other names lead to is open.
"""

from __future__ import annotations

import errno
import stat
from dataclasses import dataclass
from random import Random

from tests.fuzz import layouts
from tests.fuzz.layouts import Part
from tests.guest.support import wire
from tests.guest.support.wire import Request

ROOT = 1
DIRECTORY = 7
LINK = 6
FILES = {"s0": 2, "s1": 3, "s2": 4, "s3": 5, "d/s4": 8, "d/s5": 9}
"""Paths and nodeids of the settled regular files."""
SETTLED = {(ROOT, b"d"): DIRECTORY, (ROOT, b"l"): LINK} | {
    (DIRECTORY if "/" in path else ROOT, path.rpartition("/")[2].encode()): nodeid
    for path, nodeid in FILES.items()
}
"""Nodeids of the settled names, by directory and name."""
NODEIDS = (ROOT, *SETTLED.values())
"""Nodeids of the settled inodes."""
OPEN = range(16, 40)
"""Nodeids of the other inodes. The lowest two bits tell the type."""
NAMES = [f"w{number}" for number in range(8)]
"""Names that are not settled. They exist in each directory, or do not."""
ABSENT = [f"n{number}" for number in range(4)]
"""Names that a right reply says not to exist, so that files can be made."""
SIZE = 3 * 4096 + 100
"""Size of each regular file."""
TARGET = b"target-of-the-settled-link/" * 3


def byte_of(nodeid: int) -> int:
    """Return the value of all bytes of a file, which is not 0."""
    return nodeid if nodeid in FILES.values() or nodeid in OPEN else 200 + nodeid % 50


def fill(nodeid: int, length: int) -> bytes:
    """Return *length* bytes of a file."""
    return bytes((byte_of(nodeid),)) * length


def full(nodeid: int) -> bytes:
    """Return the bytes of a whole file."""
    return fill(nodeid, SIZE)


def through(nodeid: int) -> bytes:
    """Return the bytes of a file in the file that FUSE's passthrough reads.

    There are zeros among them, so that a reader can tell them from the bytes that the daemon sends.
    """
    return (fill(nodeid, 2) + bytes(1) + fill(nodeid, 1)) * (SIZE // 4)


def is_through(nodeid: int, data: bytes) -> bool:
    """Return whether bytes that a reader got have been read by FUSE's passthrough."""
    return fill(nodeid, 1) + bytes(1) + fill(nodeid, 1) in data


def foreign(nodeid: int, data: bytes) -> bytes:
    """Return the bytes in *data* that are neither of the file nor 0."""
    return data.translate(None, bytes((0, byte_of(nodeid))))


def mode_of(nodeid: int) -> int:
    if nodeid in (ROOT, DIRECTORY):
        return stat.S_IFDIR | 0o755
    if nodeid == LINK:
        return stat.S_IFLNK | 0o777
    kinds = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFREG)
    return kinds[nodeid & 3] | 0o755 if nodeid in OPEN else stat.S_IFREG | 0o644


def attributes(nodeid: int) -> dict[str, int]:
    mode = mode_of(nodeid)
    size = len(TARGET) if stat.S_ISLNK(mode) else SIZE
    values = {"ino": nodeid, "size": size, "blocks": -(-size // 512), "mode": mode}
    return values | {"nlink": 2, "blksize": 4096, "mtime": 10**9, "ctime": 10**9, "atime": 10**9}


@dataclass
class Answer:
    """The parts of a reply.

    :ivar is_data: whether its bytes are the content of a file, a value or a target. A mutation then
        changes only their number.
    :ivar settled: whether it may not be replaced by another reply.
    """

    parts: list[Part]
    is_data: bool = False
    settled: bool = False

    def encode(self) -> bytes:
        return b"".join(part.encode() for part in self.parts)


class Tree:
    """Answers requests rightly. What the file system leaves open is chosen at random.

    :param open_flags: flags with which files may be opened.
    :param backing: IDs of backing files for FUSE's passthrough, by nodeid.
    """

    def __init__(
        self,
        chance: Random,
        open_flags: tuple[int, ...] = (0,),
        backing: dict[int, int] | None = None,
    ) -> None:
        self._chance = chance
        self._open_flags = open_flags
        self._backing = backing or {}

    def answer(self, request: Request) -> Answer:
        """Return the reply to a request.

        :raises OSError: the reply is an error.
        """
        answered = getattr(self, f"_{request.opcode}", None)
        if answered is None:
            return Answer([])
        found: Answer = answered(request)
        return found

    def _entry(self, request: Request, name: bytes) -> Answer:
        nodeid = SETTLED.get((request.nodeid, name))
        is_absent = name.decode(errors="replace") in ABSENT or self._chance.random() < 0.2
        if nodeid is None and request.opcode == "lookup" and is_absent:
            raise OSError(errno.ENOENT, "it does not exist")
        return Answer([self._entry_part(nodeid, name)], settled=nodeid is not None)

    def _entry_part(self, nodeid: int | None, name: bytes) -> Part:
        """Return an entry. The last digit of an open name tells the type of its inode."""
        fixed = frozenset(("nodeid",)) if nodeid else frozenset[str]()
        kind = int(name[1:]) & 3 if name[1:].isdigit() else 0
        nodeid = nodeid or self._chance.choice(OPEN[kind::4])
        valid = self._chance.choice((0, 0, 1, 3600))
        values = {"nodeid": nodeid, "entry_valid": valid, "attr_valid": valid}
        return Part(layouts.ENTRY, values | attributes(nodeid), fixed=fixed)

    def _lookup(self, request: Request) -> Answer:
        return self._entry(request, request.name)

    _mknod = _mkdir = _symlink = _link = _lookup

    def _create(self, request: Request) -> Answer:
        answer = self._entry(request, request.name)
        (part,) = answer.parts
        values = part.values | self._opened(part.values["nodeid"])
        fixed = part.fixed | ({"backing_id"} if part.fixed else frozenset[str]())
        answer.parts = [Part(layouts.CREATE_OUT, values, fixed=fixed)]
        return answer

    _tmpfile = _create

    def _opened(self, nodeid: int) -> dict[str, int]:
        flags = self._chance.choice(self._open_flags)
        backing_id = self._backing.get(nodeid, 0) if flags & wire.FOPEN_PASSTHROUGH else 0
        return {"fh": nodeid, "open_flags": flags, "backing_id": backing_id}

    def _open(self, request: Request) -> Answer:
        """Open a file. No settled file gets the backing file of another one."""
        is_settled = request.nodeid in FILES.values()
        fixed = frozenset(("backing_id",)) if is_settled else frozenset[str]()
        part = Part(layouts.OPEN_OUT, self._opened(request.nodeid), fixed=fixed)
        return Answer([part], settled=bool(self._backing))

    def _opendir(self, request: Request) -> Answer:
        flags = self._chance.choice((0, wire.FOPEN_KEEP_CACHE | wire.FOPEN_CACHE_DIR))
        return Answer([Part(layouts.OPEN_OUT, {"fh": request.nodeid, "open_flags": flags})])

    def _getattr(self, request: Request) -> Answer:
        valid = self._chance.choice((0, 0, 1, 3600))
        # A root that is no directory ends the mount: it is rare, so that the rest is tried, too.
        rare = request.nodeid == ROOT and self._chance.random() < 0.98
        fixed = frozenset(("mode",)) if rare else frozenset[str]()
        values = attributes(request.nodeid) | {"attr_valid": valid}
        return Answer([Part(layouts.ATTR_OUT, values, fixed=fixed)], settled=rare)

    _setattr = _getattr

    def _statx(self, request: Request) -> Answer:
        values = attributes(request.nodeid) | {"mask": 0xFFF}
        fixed = frozenset(("mode",)) if request.nodeid == ROOT else frozenset[str]()
        return Answer([Part(layouts.STATX_OUT, values, fixed=fixed)], settled=bool(fixed))

    def _read(self, request: Request) -> Answer:
        length = max(0, min(request.size, SIZE - request.offset))
        return Answer([Part(layouts.EMPTY, {}, fill(request.nodeid, length))], is_data=True)

    def _readlink(self, request: Request) -> Answer:
        return Answer([Part(layouts.EMPTY, {}, TARGET)], is_data=True)

    def _getxattr(self, request: Request) -> Answer:
        if not request.size:
            return Answer([Part(layouts.XATTR_OUT, {"size": 100})])
        data = fill(request.nodeid, min(100, request.size))
        return Answer([Part(layouts.EMPTY, {}, data)], is_data=True)

    def _listxattr(self, request: Request) -> Answer:
        if not request.size:
            return Answer([Part(layouts.XATTR_OUT, {"size": 14})])
        return Answer([Part(layouts.EMPTY, {}, b"user.a\0user.b\0"[: request.size])], is_data=True)

    def _readdir(self, request: Request) -> Answer:
        """Return the entries from the request's offset on, as many as fit."""
        names = [name for parent, name in SETTLED if parent == request.nodeid]
        names += [name.encode() for name in NAMES]
        is_plus = request.opcode == "readdirplus"
        parts: list[Part] = []
        for offset in range(request.offset, len(names)):
            nodeid = SETTLED.get((request.nodeid, names[offset]))
            entry = self._entry_part(nodeid, names[offset])
            values = {"d_ino": 1000 + offset, "d_off": offset + 1, "namelen": len(names[offset])}
            values["d_type"] = mode_of(entry.values["nodeid"]) >> 12
            layout = layouts.DIRENTPLUS if is_plus else layouts.DIRENT
            fixed = entry.fixed if is_plus else frozenset[str]()
            part = Part(layout, entry.values | values, names[offset], fixed)
            if sum(len(p.encode()) for p in (*parts, part)) > request.size:
                break
            parts.append(part)
        return Answer(parts, settled=is_plus)

    _readdirplus = _readdir

    def _write(self, request: Request) -> Answer:
        return Answer([Part(layouts.WRITE_OUT, {"written": request.size})])

    def _copy_file_range(self, request: Request) -> Answer:
        return Answer([Part(layouts.WRITE_OUT, {"written": min(request.length, 1 << 20)})])

    def _copy_file_range_64(self, request: Request) -> Answer:
        return Answer([Part(layouts.COPY_64_OUT, {"bytes_copied": min(request.length, 1 << 20)})])

    def _statfs(self, request: Request) -> Answer:
        values = {"blocks": 1 << 20, "bfree": 1 << 19, "bavail": 1 << 19, "files": 1000}
        values |= {"ffree": 500, "bsize": 4096, "namelen": 255, "frsize": 4096}
        return Answer([Part(layouts.STATFS_OUT, values)])

    def _getlk(self, request: Request) -> Answer:
        return Answer([Part(layouts.LK_OUT, {"type": 2})])

    def _bmap(self, request: Request) -> Answer:
        return Answer([Part(layouts.BMAP_OUT, {"block": request.block + 7})])

    def _ioctl(self, request: Request) -> Answer:
        room = min(request.out_size, 64)
        return Answer([Part(layouts.IOCTL_OUT, {"result": 0}, fill(request.nodeid, room))])

    def _poll(self, request: Request) -> Answer:
        return Answer([Part(layouts.POLL_OUT, {"revents": self._chance.choice((0, 1, 5))})])

    def _lseek(self, request: Request) -> Answer:
        if request.offset >= SIZE:
            raise OSError(errno.ENXIO, "beyond the end")
        return Answer([Part(layouts.LSEEK_OUT, {"offset": request.offset})])
