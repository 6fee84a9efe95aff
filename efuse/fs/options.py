# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a file system declares about itself, so that the kernel knows what it may answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from efuse.errors import UsageError

__all__ = [
    "CAPACITY_MAPS",
    "CONSISTENCY",
    "MAX_READDIR_BYTES",
    "MAX_REQUEST_BYTES",
    "Options",
]

CONSISTENCY = ("strict", "ttl", "cto", "exclusive")
CAPACITY_MAPS = ("attrs", "blobs", "blocks", "entries", "grants", "volumes")
_PAGE_BYTES = 4096
"""Requests grow by pages."""
MAX_REQUEST_BYTES = 8 << 20
MAX_READDIR_BYTES = 128 << 10

_CAPACITY_LIMIT = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a file system promises, and how much the kernel may keep of what it said.

    None of it has an effect where the kernel has no eFuse. A promise that is not kept makes the
    kernel give wrong answers, so the default is to promise nothing.

    :raises UsageError: a value is not one of those described.
    """

    consistency: str = "ttl"
    """How long the kernel believes an answer: ``strict`` (never), ``ttl`` (as long as its
    ``entry_timeout`` or ``attr_timeout`` says), ``cto`` (as ttl, and an open asks anew),
    ``exclusive`` (until this mount changes it or :meth:`efuse.Operations.invalidate` is called:
    nobody else changes the files)."""

    stable_nodeids: bool = False
    """An inode number is never given to another file, not even after ``forget``."""

    nodeid_per_file: bool = False
    """All names of a file (hard links) have one inode number. Without it, files of several names
    are believed as with ``ttl`` in ``exclusive``, too."""

    caller_independent: bool = False
    """Answers do not depend on who asks. Needless with the mount option default_permissions."""

    handleless: bool = False
    """``open`` and ``opendir`` have no effect but their result: the kernel may answer them. Then
    ``fh`` of read, write, fsync, setattr and readdir is the inode's number, and no release is seen.
    What ``open`` returns itself must never equal an inode's number."""

    flush_free: bool = False
    """``flush`` does nothing for a file that was not written through that handle."""

    lazy_atime: bool = False
    """Access times may be reported late: reading does not void what is known of a file."""

    capacity: Mapping[str, int] = field(default_factory=dict)
    """Most values that a map keeps, by the map's name (entries, attrs, blobs, grants, volumes);
    ``blocks`` are 4 KiB of file data each, and may be 0."""

    max_request: int = 0
    """The most bytes of a READ or WRITE that the kernel makes, a multiple of 4096 up to 8 MiB; 0:
    as many as the daemon takes. What is larger than the daemon takes comes to it in parts, so this
    is for what the kernel answers. FUSE's read-ahead stays as it is."""

    max_readdir: int = 32 << 10
    """The most bytes of directory that are asked for at once, a multiple of 4096 up to 128 KiB;
    4096 is what plain FUSE asks for."""

    def __post_init__(self) -> None:
        if self.consistency not in CONSISTENCY:
            raise UsageError(
                f"consistency cannot be {self.consistency!r} (EINVAL)",
                hint=f"it is one of {', '.join(CONSISTENCY)}",
            )
        for name in self.declarations():
            if not isinstance(getattr(self, name), bool):
                raise UsageError(
                    f"{name} cannot be {getattr(self, name)!r} (EINVAL)",
                    hint="it is True or False",
                )
        for name, count in self.capacity.items():
            if name not in CAPACITY_MAPS:
                raise UsageError(
                    f"there is no map called {name!r} to give a capacity (ENOENT)",
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
        """Return the names of the promises that are either given or not."""
        return tuple(f.name for f in fields(cls) if f.default is False)


def _check_bytes(name: str, value: Any, least: int, most: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= value <= most or value % _PAGE_BYTES:
        raise UsageError(
            f"{name} cannot be {value!r} (EINVAL)",
            hint=f"it is a number of bytes from {least} to {most}, a multiple of {_PAGE_BYTES}",
        )
