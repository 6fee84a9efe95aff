# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's own file systems that we use, where systemd would mount them."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

__all__ = ["BPFFS", "CONFIGFS", "mount_bpffs", "mount_configfs"]

BPFFS = Path("/sys/fs/bpf")
"""Where BPF objects are pinned."""
CONFIGFS = Path("/sys/kernel/config")
"""Where devices are made by their directories."""


def mount_bpffs() -> None:
    """Mount a bpffs, if there is none.

    :raises OSError: it cannot be mounted.
    """
    _mount("bpf", BPFFS, "mode=0700")


def mount_configfs() -> None:
    """Mount a configfs, if there is none.

    :raises OSError: it cannot be mounted.
    """
    _mount("configfs", CONFIGFS, "")


def _mount(kind: str, where: Path, options: str) -> None:
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    if any(line.split()[1:3] == [str(where), kind] for line in mounts):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(kind.encode(), os.fsencode(where), kind.encode(), 0, options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
