# SPDX-License-Identifier: LGPL-2.1-or-later
"""The operations of a random schedule: which ones each worker does, as a seed chooses them.

The workers share two files, which stay open, and a directory of names, some of them links to these
files. Each write of a file writes one value of its own, so that a reader can tell the writes apart.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

PAGE = 4096
FILES = ("f0", "f1")
SIZE = 3 * PAGE
"""Size of each file at the start, bytes."""

FIRST_VALUE = 255
"""The value of each byte at the start. Writes have values from 1 on."""

DIRECTORY = "d"
NAMES = ("a", "b", "c")
XATTR = "user.x"


@dataclass(frozen=True)
class Operation:
    """One operation of a worker, or a change that the daemon makes by itself.

    :ivar kind: name of the operation, such as ``write``.
    :ivar file: number of the file in `FILES`.
    :ivar at: offset, or the new size.
    :ivar length: number of bytes.
    :ivar value: the value of the bytes, the new mode or the new value of the extended attribute.
    :ivar name: a name in `DIRECTORY`.
    :ivar other: a second name.
    """

    kind: str
    file: int = 0
    at: int = 0
    length: int = 0
    value: int = 0
    name: str = ""
    other: str = ""

    def __str__(self) -> str:
        if self.kind in _NAMED:
            return f"{self.kind} {self.name} {self.other} {FILES[self.file]}"
        numbers = f"{self.at:#x}+{self.length:#x}={self.value}"
        return f"{self.kind} {FILES[self.file]} {numbers}"


@dataclass(frozen=True)
class Profile:
    """What a schedule uses.

    :ivar name: its name.
    :ivar weights: the operations of the workers, and how often each is chosen.
    :ivar changes: the changes that the daemon makes by itself, and how often each is chosen.
    :ivar least: smallest size to which a file is cut. A read through a map beyond the end of the
        file would kill the worker.
    :ivar mapped: whether the workers map the files.
    :ivar extents: whether the files are in backing files.
    """

    name: str
    weights: dict[str, int]
    changes: dict[str, int]
    least: int = 0
    mapped: bool = False
    extents: bool = False


_NAME_OPERATIONS = {
    "stat_name": 8,
    "list": 2,
    "link": 3,
    "rename": 3,
    "unlink": 3,
    "mkdir": 1,
    "rmdir": 1,
    "symlink": 1,
    "create": 1,
}
_NAMED = _NAME_OPERATIONS.keys() | {"daemon_link", "daemon_unlink"}
_ATTRIBUTE_OPERATIONS = {
    "stat": 5,
    "stat_forced": 2,
    "chmod": 2,
    "setxattr": 2,
    "getxattr": 4,
    "listxattr": 1,
    "removexattr": 1,
}

PROFILES = (
    # The daemon changes files, too, and notifies the kernel. It leaves their sizes: FUSE drops a
    # reply to GETATTR that has crossed the end of a WRITE, so that a read ends where the file ended
    # before, as on plain FUSE (docs/limits.md).
    Profile(
        "calls",
        {
            "write": 7,
            "write_direct": 2,
            "append": 3,
            "truncate": 3,
            "open_truncated": 1,
            "read": 10,
            "read_direct": 5,
            "read_opened": 4,
            "fsync": 1,
            **_ATTRIBUTE_OPERATIONS,
        },
        {"daemon_write": 5, "daemon_chmod": 1, "daemon_setxattr": 2},
    ),
    Profile(
        "names",
        {**_NAME_OPERATIONS, **_ATTRIBUTE_OPERATIONS, "truncate": 2, "append": 1},
        {
            "daemon_link": 2,
            "daemon_unlink": 2,
            "daemon_truncate": 1,
            "daemon_chmod": 1,
            "daemon_setxattr": 1,
        },
    ),
    # Without O_TRUNC: bytes that are stored through a map while open(2) cuts the file come back, as
    # on plain FUSE (docs/limits.md). The daemon writes no bytes, because a dirty page that is
    # written back replaces them, as on plain FUSE.
    Profile(
        "maps",
        {
            "store": 8,
            "load": 6,
            "write": 6,
            "append": 2,
            "truncate": 2,
            "read": 8,
            "read_opened": 3,
            "msync": 3,
            "fsync": 1,
            "stat": 3,
        },
        {"daemon_chmod": 1, "daemon_setxattr": 1},
        least=2 * PAGE,
        mapped=True,
    ),
    # The size of an extent is that of its backing file, so nothing changes it. No direct writes:
    # one that goes to the daemon is lost if a program stores to its page meanwhile, as on plain
    # FUSE: the store reads the old page, which FUSE writes back as a whole after the direct write.
    Profile(
        "extents",
        {
            "write": 8,
            "store": 4,
            "load": 4,
            "read": 10,
            "read_direct": 3,
            "read_opened": 3,
            "msync": 2,
            "fsync": 1,
            "stat": 3,
        },
        {"unmap": 1, "map": 2},
        least=SIZE,
        mapped=True,
        extents=True,
    ),
    Profile(
        "direct",
        {
            "write": 6,
            "write_direct": 6,
            "load": 3,
            "read": 6,
            "read_direct": 8,
            "read_opened": 3,
            "fsync": 1,
            "stat": 3,
        },
        {"unmap": 1, "map": 2},
        least=SIZE,
        mapped=True,
        extents=True,
    ),
)


class Chooser:
    """Chooses operations by a seed. No two writes of a file have the same value."""

    def __init__(self, profile: Profile, seed: str) -> None:
        self._profile = profile
        self._random = random.Random(seed)
        self._last = [0, 0]

    def operations(self, number: int) -> Iterator[Operation]:
        """Yield *number* operations for a worker."""
        yield from (self._one(self._profile.weights) for _ in range(number))

    def changes(self, number: int) -> Iterator[Operation]:
        """Yield *number* changes of the daemon."""
        yield from (self._one(self._profile.changes) for _ in range(number))

    def _one(self, weights: dict[str, int]) -> Operation:
        (kind,) = self._random.choices(list(weights), list(weights.values()))
        file = self._random.choice((0, 0, 1))
        at, length = self._range(kind)
        value = 0
        if kind in ("write", "write_direct", "append", "store", "daemon_write"):
            self._last[file] += 1
            value = self._last[file]
            assert value < FIRST_VALUE, "too many writes"
        elif kind in ("truncate", "daemon_truncate"):
            at = self._random.randrange(self._profile.least, SIZE + PAGE)
        elif kind in ("chmod", "daemon_chmod"):
            value = self._random.choice((0o600, 0o644, 0o640, 0o666))
        elif kind in ("setxattr", "daemon_setxattr"):
            value = self._random.randrange(1000)
        name, other = self._random.choices(NAMES, k=2)
        return Operation(kind, file, at, length, value, name, other)

    def _range(self, kind: str) -> tuple[int, int]:
        """Return an offset, often the start of a page, and a length, often of whole pages."""
        end = 2 * PAGE if self._profile.mapped else SIZE
        at = self._random.choice((0, 0, PAGE, 100, PAGE - 50, self._random.randrange(end - 1)))
        length = self._random.choice((8, 100, 600, PAGE, PAGE, 2 * PAGE))
        if kind.startswith(("read", "load")):
            length = self._random.choice((PAGE, 2 * PAGE, SIZE))
        return at, min(length, end - at)
