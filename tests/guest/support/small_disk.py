# SPDX-License-Identifier: LGPL-2.1-or-later
"""A small ext4 file system below a mount, which can be filled, frozen or shut down."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.guest.support.shell import run

_EXT4_IOC_SHUTDOWN = 0x8004587D


@contextlib.contextmanager
def small(lower: Path) -> Iterator[Path]:
    """Mount an ext4 file system of 4 MiB; yield its root."""
    image, point = lower / "image", lower / "point"
    image.write_bytes(bytes(1 << 22))
    point.mkdir()
    run("mkfs.ext4", "-q", "-F", "-m", "0", image)
    run("mount", "-o", "loop", image, point)
    try:
        yield point
    finally:
        run("umount", "--lazy", point)


def shut_down(point: Path) -> None:
    """Make the lower ext4 fail everything from now on, as after an error of its device."""
    fd = os.open(point, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _EXT4_IOC_SHUTDOWN, struct.pack("=I", 2))  # immediately, without a flush
    finally:
        os.close(fd)


@contextlib.contextmanager
def frozen(point: Path) -> Iterator[None]:
    """Keep all writes to a file system waiting."""
    run("fsfreeze", "-f", point)
    try:
        yield
    finally:
        run("fsfreeze", "-u", point)
