# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mount the kernel file systems that eFuse uses, where systemd would mount them."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

__all__ = ["BPFFS", "CONFIGFS", "mount_bpffs", "mount_configfs"]

BPFFS = Path("/sys/fs/bpf")
"""Mount point of bpffs, where BPF objects are pinned."""
CONFIGFS = Path("/sys/kernel/config")
"""Mount point of configfs. Creating a directory there creates an emulated device."""


def mount_bpffs() -> None:
    """Mount bpffs at `BPFFS` unless it is mounted there.

    :raises OSError: mount(2) failed.
    """
    _mount("bpf", BPFFS, "mode=0700")


def mount_configfs() -> None:
    """Mount configfs at `CONFIGFS` unless it is mounted there.

    :raises OSError: mount(2) failed.
    """
    _mount("configfs", CONFIGFS, "")


def _mount(kind: str, where: Path, options: str) -> None:
    mounts = Path("/proc/self/mounts").read_bytes().splitlines()
    if any(line.split()[1:3] == [os.fsencode(where), kind.encode()] for line in mounts):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(kind.encode(), os.fsencode(where), kind.encode(), 0, options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
