# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make computational storage devices by configfs: ``csd.ko``'s directories and their files.

``EFUSE_CSD_MODULE`` names the module that :func:`load` loads.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.guest.hand import until

CONFIG = Path("/sys/kernel/config")
DEVICES = CONFIG / "csd"
MODULE = Path("/sys/module/csd")

_numbers = itertools.count()


def _run(*command: str | os.PathLike[str]) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def load() -> None:
    """Load the module, unless it is loaded."""
    if MODULE.exists():
        return
    # It may be built in.
    if not CONFIG.exists():
        _run("modprobe", "configfs")
    if not os.path.ismount(CONFIG):
        _run("mount", "-t", "configfs", "none", CONFIG)
    _run("insmod", os.environ["EFUSE_CSD_MODULE"])


def unload() -> None:
    """Unload the module.

    :raises subprocess.CalledProcessError: it is in use.
    """
    _run("rmmod", "csd")


class Device:
    """A device's directory.

    :ivar directory: of its attributes.
    """

    def __init__(self, name: str) -> None:
        self.directory = DEVICES / name

    @property
    def path(self) -> Path:
        """The block device, while there is power."""
        return Path(f"/dev/csd{self.read('index')}")

    def read(self, attribute: str) -> int:
        """Return the number in the file *attribute*."""
        return int((self.directory / attribute).read_text())

    def write(self, attribute: str, value: int | str) -> None:
        """Write *value* to the file *attribute*, in one system call.

        :raises OSError: it was refused.
        """
        descriptor = os.open(self.directory / attribute, os.O_WRONLY)
        try:
            os.write(descriptor, f"{value}\n".encode())
        finally:
            os.close(descriptor)

    def wait(self, attribute: str, value: int) -> None:
        """Wait until the number in the file *attribute* is at least *value*; fail after a while."""
        until(lambda: self.read(attribute) >= value)


def noise(length: int, seed: int = 0) -> bytes:
    """Return bytes that are the same for the same *seed*."""
    return random.Random(seed).randbytes(length)


@contextlib.contextmanager
def csd(**attributes: int) -> Iterator[Device]:
    """Make a device, set *attributes* in their order, and remove it afterwards.

    Its directory may be gone by then.
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
