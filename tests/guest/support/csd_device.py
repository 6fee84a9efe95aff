# SPDX-License-Identifier: LGPL-2.1-or-later
"""Computational storage devices for tests, with operations that the package does not offer.

``EFUSE_CSD_MODULE`` names the module that :func:`load` loads.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

from efuse import csd as package
from efuse.csd import unload
from tests.guest.support.manual_daemon import until
from tests.guest.support.shell import run

__all__ = ["Device", "csd", "load", "make_quiet_ext4", "mount_quiet_ext4", "noise", "unload"]

_numbers = itertools.count()


def load() -> None:
    """Load the module, unless it is already loaded."""
    package.load(Path(os.environ["EFUSE_CSD_MODULE"]))


class Device(package.Device):
    """A device that accepts arbitrary writes to its attributes."""

    def write(self, attribute: str, value: int | str) -> None:
        """Write *value* to the file of *attribute*, in one system call.

        :raises OSError: the kernel refuses the value.
        """
        descriptor = os.open(self.directory / attribute, os.O_WRONLY)
        try:
            os.write(descriptor, f"{value}\n".encode())
        finally:
            os.close(descriptor)

    def wait(self, attribute: str, value: int) -> None:
        """Wait until the value of *attribute* is at least *value*; fail after a while."""
        until(lambda: self.read(attribute) >= value)


def noise(length: int, seed: int = 0) -> bytes:
    """Return random bytes, always the same ones for the same *seed*."""
    return random.Random(seed).randbytes(length)


@contextlib.contextmanager
def csd(**attributes: int) -> Iterator[Device]:
    """Make a device and set *attributes* in the given order; remove it afterwards.

    The test may remove the device itself.
    """
    device = Device(f"test{next(_numbers)}")
    device.directory.mkdir()
    try:
        for attribute, value in attributes.items():
            device.write(attribute, value)
        yield device
    finally:
        with contextlib.suppress(FileNotFoundError):
            device.directory.rmdir()


def make_quiet_ext4(device: package.Device) -> None:
    """Make an ext4 that writes nothing in the background, so that a test can count bytes."""
    lazy = "lazy_itable_init=0,lazy_journal_init=0"
    run("mkfs.ext4", "-q", "-b", "4096", "-E", lazy, device.path)


def mount_quiet_ext4(device: package.Device, directory: Path) -> None:
    """Mount the ext4 of a device, which then reads nothing in the background either.

    By default ext4 reads the block bitmaps a few seconds after the mount.
    """
    run("mount", "-o", "no_prefetch_block_bitmaps", device.path, directory)
