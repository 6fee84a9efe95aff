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

__all__ = ["Device", "csd", "load", "noise", "unload"]

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
