# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lower file system of every comparison: ext4 on a loop device over a file in tmpfs."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from efuse.errors import EfuseError

__all__ = ["command", "ext4"]


def command(*words: str | os.PathLike[str]) -> None:
    """Run a command that has to work.

    :raises EfuseError: it does not, with what it said.
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        why = said[-1] if said else f"exit status {done.returncode}"
        raise EfuseError(
            f"{os.fspath(words[0])} failed: {why}", hint="it takes root, and ext4 and loop modules"
        )


@contextmanager
def ext4(size_mib: int) -> Iterator[Path]:
    """Mount a new ext4 of *size_mib* MiB in memory and yield where; it is gone afterwards.

    :raises EfuseError: it cannot be made or mounted.
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
            # It may be built in, in a kernel without a single module of its own.
            if not Path("/sys/module/loop").exists():
                command("modprobe", "loop")
            command("mount", "-o", "loop,noatime", image, mountpoint)
            try:
                yield mountpoint
            finally:
                # Lazily: the kernel may still be letting go of the last backing file.
                command("umount", "-l", mountpoint)
        finally:
            command("umount", "-l", memory)
