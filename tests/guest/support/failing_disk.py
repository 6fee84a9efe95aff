# SPDX-License-Identifier: LGPL-2.1-or-later
"""A disk (device mapper) that a test can make fail at one block, or hold all requests."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_NAME = "efuse_test"
_SECTOR, _BLOCK = 512, 4096


def _run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"{command} failed with {done.returncode}: {done.stderr}")
    return done.stdout


class Disk:
    """The disk, with an ext4 file system whose blocks have 4 KiB.

    :ivar root: mount point of the file system.
    """

    def __init__(self, loop: str, sectors: int, root: Path) -> None:
        self._loop = loop
        self._sectors = sectors
        self.root = root

    def hold(self) -> None:
        """Hold all requests until resume()."""
        _run("dmsetup", "suspend", "--noflush", "--nolockfs", _NAME)

    def resume(self) -> None:
        """Continue the held requests."""
        _run("dmsetup", "resume", _NAME)

    def fail(self, file: Path, block: int) -> None:
        """Fail all accesses to a block of a file. The file must have a single extent."""
        extents = _run("filefrag", "-e", str(file))
        found = re.search(r"0:\s+0\.\.\s*\d+:\s+(\d+)\.\.", extents)
        assert found, extents
        bad = (int(found[1]) + block) * (_BLOCK // _SECTOR)
        after = bad + _BLOCK // _SECTOR
        table = (
            f"0 {bad} linear {self._loop} 0\n"
            f"{bad} {after - bad} error\n"
            f"{after} {self._sectors - after} linear {self._loop} {after}\n"
        )
        self.hold()
        _run("dmsetup", "load", _NAME, given=table)
        self.resume()


@contextlib.contextmanager
def failing_disk(base: Path, size: int = 64 << 20) -> Iterator[Disk]:
    """Make the disk with its image below *base*; remove it afterwards."""
    image, root = base / "disk", base / "root"
    with image.open("wb") as file:
        file.truncate(size)
    root.mkdir()
    for module in ("loop", "dm_mod"):
        if not Path(f"/sys/module/{module}").exists():  # it may be built in
            _run("modprobe", module)
    loop = _run("losetup", "-f", "--show", str(image)).strip()
    sectors = size // _SECTOR
    try:
        _run("dmsetup", "create", _NAME, "--table", f"0 {sectors} linear {loop} 0")
        try:
            _run("dmsetup", "mknodes")
            _run("mkfs.ext4", "-q", "-b", str(_BLOCK), f"/dev/mapper/{_NAME}")
            _run("mount", f"/dev/mapper/{_NAME}", str(root))
            try:
                yield Disk(loop, sectors, root)
            finally:
                _run("umount", "--lazy", str(root))
        finally:
            _run("dmsetup", "remove", "--force", "--retry", _NAME)
    finally:
        _run("losetup", "-d", loop)
        image.unlink()
