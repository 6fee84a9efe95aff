# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lower file system of a comparison: an ext4 in memory, or on an emulated device.

In memory it is on a loop device over a file in tmpfs, so that no real device is measured.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from efuse import csd
from efuse.csd import Device
from efuse.csd.profiles import PROFILES
from efuse.errors import EfuseError
from efuse.functions.btree_file import BLOCK
from efuse.guest.run import CSD_MODULE

__all__ = ["LOWER", "command", "ext4", "load_csd", "lower", "on_device"]

LOWER = ("memory", *PROFILES)
"""Where the lower file system can be: in memory, or on a device with one of the profiles."""


def command(*words: str | os.PathLike[str]) -> None:
    """Run a command.

    :raises EfuseError: the command fails; the message has the last line of its output.
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        why = lines[-1] if lines else f"exit status {done.returncode}"
        raise EfuseError(
            f"{os.fspath(words[0])} failed: {why}",
            hint="run as root; the modules ext4 and loop are needed",
        )


@contextmanager
def ext4(size_mib: int) -> Iterator[Path]:
    """Mount a new ext4 of *size_mib* MiB in memory and yield its mount point; remove it afterwards.

    :raises EfuseError: the file system cannot be made or mounted.
    """
    with tempfile.TemporaryDirectory(prefix="efuse-lower-") as name:
        memory, mountpoint = Path(name) / "memory", Path(name) / "lower"
        memory.mkdir()
        mountpoint.mkdir()
        command("mount", "-t", "tmpfs", "-o", f"size={size_mib + 8}m", "efuse-lower", memory)
        try:
            image = memory / "image"
            with image.open("wb") as f:
                f.truncate(size_mib << 20)
            command("mkfs.ext4", "-q", "-F", "-I", "256", image)
            # The kernel may have loop built in, and then possibly no modules at all.
            if not Path("/sys/module/loop").exists():
                command("modprobe", "loop")
            command("mount", "-o", "loop,noatime", image, mountpoint)
            try:
                yield mountpoint
            finally:
                # Lazily: the kernel may still hold the last backing file.
                command("umount", "-l", mountpoint)
        finally:
            command("umount", "-l", memory)


def load_csd(say: Callable[[str], None]) -> None:
    """Load csd.ko: the module with which a guest was booted, or this machine's.

    :raises EfuseError: csd.ko cannot be loaded.
    """
    module = os.environ.get(CSD_MODULE)
    csd.load(Path(module) if module else None, say=say)


@contextmanager
def on_device(profile: str, size_mib: int) -> Iterator[tuple[Device, Path]]:
    """Make a device of a profile with an ext4; yield the device and the mount point.

    :raises EfuseError: csd.ko is not loaded, or the device cannot be made or used.
    """
    values = {**PROFILES[profile].values, "size_mib": size_mib}
    device = csd.create(f"bench-{os.getpid()}", values)
    try:
        command("mkfs.ext4", "-q", "-b", str(BLOCK), "-I", "256", device.path)
        with tempfile.TemporaryDirectory(prefix="efuse-csd-") as name:
            # Workloads count what the device reads, so ext4 must not read by itself.
            command("mount", "-o", "noatime,no_prefetch_block_bitmaps", device.path, name)
            try:
                yield device, Path(name)
            finally:
                command("umount", name)
    finally:
        device.remove()


@contextmanager
def lower(kind: str, size_mib: int, say: Callable[[str], None]) -> Iterator[Path]:
    """Yield the mount point of a new file system at *kind*, one of `LOWER`.

    :raises EfuseError: the file system cannot be made or mounted.
    """
    if kind == "memory":
        with ext4(size_mib) as mountpoint:
            yield mountpoint
        return
    load_csd(say)
    with on_device(kind, size_mib) as (_, mountpoint):
        yield mountpoint
