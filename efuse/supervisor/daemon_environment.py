# SPDX-License-Identifier: LGPL-2.1-or-later
"""The environment of a daemon, by which its libraries learn of a better transport."""

from __future__ import annotations

import os
from pathlib import Path

from efuse.fs.preload import preload_library

__all__ = ["environment"]

_SWITCH = Path("/sys/module/efuse/parameters/enable_uring")
_RINGS = "FUSE_URING_ENABLE"


def environment(*, channels: bool) -> dict[str, str]:
    """Return this process's environment, with what a daemon needs.

    libfuse 3.18 and later, if it was built with io_uring, asks the kernel for rings if a variable
    tells it so. Requests then come by the rings, and no longer by channels. The user's own value of
    the variable stays.

    :param channels: whether libfuse's loop is to be replaced by one with channels.
    """
    result = dict(os.environ)
    if _has_rings():
        result.setdefault(_RINGS, "1")
    if not channels:
        return {**result, "EFUSE_CHANNELS": "0"}
    already = result.get("LD_PRELOAD")
    shim = str(preload_library())
    return {**result, "LD_PRELOAD": f"{shim}:{already}" if already else shim}


def _has_rings() -> bool:
    """Tell whether the module lets daemons use io_uring: Linux 6.14 or later, switched on."""
    try:
        return _SWITCH.read_text().strip() == "Y"
    except FileNotFoundError:
        return False
