# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directories of pins, which only trusted users can change.

A bpffs that is mounted without options lets every user make directories and symbolic links in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from efuse import locations
from efuse.errors import AttachError
from efuse.kernel_fs import BPFFS

__all__ = ["check", "make_directory", "opened", "remove"]


def check(directory: Path) -> None:
    """Check that only trusted users can change what *directory* names, before pins there are used.

    Trusted users are those of :func:`efuse.locations.why_not_private`.

    :raises AttachError: another user can change it.
    """
    why = locations.why_not_private(directory)
    if why:
        raise AttachError(
            f"pins in {directory} are not used: {why} (EPERM)",
            hint=f"remove what that user made below {BPFFS}, or mount bpffs with mode=0700",
        )


def make_directory(directory: Path, *, exist_ok: bool = False) -> None:
    """Create *directory* and all missing directories above it, for this user alone.

    :raises OSError: it cannot be created, or it exists and *exist_ok* is False.
    :raises AttachError: another user can change it, perhaps because that user created it first.
    """
    if not directory.parent.is_dir():
        make_directory(directory.parent, exist_ok=True)
    check(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=exist_ok)
    check(directory)


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[int]:
    """Open *directory*, but not the target of a symbolic link, for the duration of the block.

    :raises AttachError: another user can change it.
    :raises OSError: it cannot be opened.
    """
    check(directory)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def remove(pin: Path) -> None:
    """Remove one pin, if it exists.

    :raises AttachError: another user can change its directory.
    :raises OSError: it cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError), opened(pin.parent) as directory:
        os.unlink(pin.name, dir_fd=directory)
