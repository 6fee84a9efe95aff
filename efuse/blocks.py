# SPDX-License-Identifier: LGPL-2.1-or-later
"""The blocks of a file, which the data cache stores."""

from __future__ import annotations

from efuse.errors import UsageError

__all__ = ["BLOCK_BYTES", "check_range"]

BLOCK_BYTES = 4096
"""Size of a block in bytes (``EFUSE_BLOCK_SIZE``)."""

_LAST_NODEID = (1 << 64) - 1
_OFFSET_LIMIT = 1 << 63


def check_range(nodeid: int, offset: int, size: int, *, end: bool) -> None:
    """Check that *size* bytes from *offset* of an inode can be published.

    :param nodeid: the inode.
    :param offset: start of the range in the file, in bytes.
    :param size: length of the range, in bytes.
    :param end: whether the file ends where the range ends.
    :raises UsageError: the range does not consist of whole blocks, or cannot exist.
    """
    if not 0 < nodeid <= _LAST_NODEID:
        raise UsageError(f"data cannot be published for inode {nodeid} (EINVAL)")
    if offset % BLOCK_BYTES or not 0 <= offset < _OFFSET_LIMIT:
        raise UsageError(
            f"data cannot be published from offset {offset} on (EINVAL)",
            hint=f"use a multiple of {BLOCK_BYTES}",
        )
    if size % BLOCK_BYTES and not end:
        raise UsageError(
            f"{size} bytes are not a whole number of blocks (EINVAL)",
            hint="pass end=True if the file ends there, else publish whole blocks",
        )
