# SPDX-License-Identifier: LGPL-2.1-or-later
"""The promises of a file system, by which the kernel decides what it may answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from efuse.control import CONSISTENCY
from efuse.errors import UsageError

__all__ = ["CAPACITY_MAPS", "Options"]

CAPACITY_MAPS = ("attrs", "blobs", "blocks", "entries", "grants", "volumes")
_PAGE_BYTES = 4096
"""Requests grow by pages."""
MAX_REQUEST_BYTES = 8 << 20
MAX_READDIR_BYTES = 128 << 10

_CAPACITY_LIMIT = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Options:
    """The promises of a file system, and the sizes of the kernel's maps and requests.

    They have no effect on a kernel without eFuse. A broken promise makes the kernel give wrong
    answers, so by default nothing is promised.

    :raises UsageError: a value is out of its range.
    """

    consistency: str = "ttl"
    """How long the kernel believes an answer: ``strict`` (never), ``ttl`` (for its
    ``entry_timeout`` or ``attr_timeout``), ``cto`` (like ``ttl``, but each open goes to the daemon
    and voids what the kernel knew of the file), or ``exclusive`` (until something changes).
    ``exclusive`` promises that each change goes through this mount, or that
    :meth:`efuse.Operations.invalidate` is called for it."""

    stable_nodeids: bool = False
    """An inode number is never given to another file, not even after ``forget``."""

    nodeid_per_file: bool = False
    """All names of a file (hard links) have one inode number. Without this promise, ``exclusive``
    mode believes files with several names only as in ``ttl`` mode."""

    caller_independent: bool = False
    """Answers do not depend on the caller. The mount option ``default_permissions`` implies it."""

    no_open: bool = False
    """``open`` and ``opendir`` have no effect except to return a handle, so the kernel may answer
    them. ``fh`` of read, write, fsync, setattr and readdir is then the inode's number, and no
    release follows. A handle that ``open`` returns must not equal the number of another inode."""

    no_flush: bool = False
    """``flush`` does nothing for a file that was not written through that handle."""

    lazy_atime: bool = False
    """Access times may be late: a read does not make the cached attributes of a file void."""

    lazy_open: bool = False
    """``open`` for reading and ``opendir`` have no effect except to return a handle. What has been
    opened once can be opened again with the same result, at any time and by any process, even after
    its last name was removed. So in ``exclusive`` mode the kernel calls them only when a later call
    needs the handle, unless the file system takes part in locks or promises ``stable_nodeids``. A
    position in a directory means the same with all its handles."""

    revalidate: bool = True
    """In ``ttl`` and ``cto``, the data of a file outlives its timeout as long as the file has the
    same mtime, ctime and size. Otherwise each open drops the data, as on plain FUSE."""

    capacity: Mapping[str, int] = field(default_factory=dict)
    """Capacity of the kernel's maps, in values, by the map's name: entries, attrs, blobs, grants,
    volumes, or ``blocks``. A block is 4 KiB of file data; ``blocks`` may be 0."""

    max_request: int = 0
    """Largest READ or WRITE that the kernel makes, in bytes: a multiple of 4096, at most 8 MiB. 0
    stands for the size that the daemon accepts. The daemon gets a larger request in parts of that
    size, so a larger value helps only where the kernel answers. FUSE's read-ahead does not grow."""

    max_readdir: int = 32 << 10
    """Largest part of a directory that the kernel asks for, in bytes: a multiple of 4096, at most
    128 KiB. Plain FUSE asks for 4096."""

    def __post_init__(self) -> None:
        if self.consistency not in CONSISTENCY:
            raise UsageError(
                f"consistency cannot be {self.consistency!r} (EINVAL)",
                hint=f"it is one of {', '.join(CONSISTENCY)}",
            )
        for name in (*self.declarations(), "revalidate"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(
                    f"{name} cannot be {getattr(self, name)!r} (EINVAL)",
                    hint="it is True or False",
                )
        for name, count in self.capacity.items():
            if name not in CAPACITY_MAPS:
                raise UsageError(
                    f"there is no map {name!r} whose capacity could be set (ENOENT)",
                    hint=f"the maps are {', '.join(CAPACITY_MAPS)}",
                )
            whole = isinstance(count, int) and not isinstance(count, bool)
            least = 0 if name == "blocks" else 1
            if not whole or not least <= count <= _CAPACITY_LIMIT:
                raise UsageError(
                    f"the capacity of {name} cannot be {count!r} (EINVAL)",
                    hint=f"it is a number of values from {least} to {_CAPACITY_LIMIT}",
                )
        _check_bytes("max_request", self.max_request, 0, MAX_REQUEST_BYTES)
        _check_bytes("max_readdir", self.max_readdir, _PAGE_BYTES, MAX_READDIR_BYTES)
        object.__setattr__(self, "capacity", MappingProxyType(dict(self.capacity)))

    @classmethod
    def declarations(cls) -> tuple[str, ...]:
        """Return the names of the promises that are true or false."""
        return tuple(f.name for f in fields(cls) if f.default is False)


def _check_bytes(name: str, value: Any, least: int, most: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= value <= most or value % _PAGE_BYTES:
        raise UsageError(
            f"{name} cannot be {value!r} (EINVAL)",
            hint=f"it is a number of bytes from {least} to {most}, a multiple of {_PAGE_BYTES}",
        )
