# SPDX-License-Identifier: LGPL-2.1-or-later
"""Take over a mount whose daemon has died, and tell whether a mount can outlive its daemon."""

from __future__ import annotations

import fcntl
import struct

from efuse.control.connection import Connection

__all__ = ["take_over", "why_it_ends"]

# EFUSE_IOC_TAKEOVER of <linux/efuse.h>.
_TAKEOVER = struct.Struct("=iIQ")
_EFUSE_IOC_TAKEOVER = 1 << 30 | _TAKEOVER.size << 16 | 229 << 8 | 68


def take_over(device: int, target: int) -> None:
    """Make a descriptor of /dev/efuse one of a mount whose daemon has died.

    :param device: the descriptor, which belongs to no mount.
    :param target: descriptor of any file of the mount, maybe opened with O_PATH.
    :raises OSError: the kernel refused it: docs/kernel-interface.md has the reasons.
    """
    fcntl.ioctl(device, _EFUSE_IOC_TAKEOVER, _TAKEOVER.pack(target, 0, 0))


def why_it_ends(connection: Connection) -> str:
    """Return in a few words why a mount ends with its daemon; empty if it can outlive it.

    Whether the daemon receives its requests by io_uring is known only after it has begun to serve.

    :raises ControlError: the connection no longer exists.
    """
    return "its daemon receives requests by io_uring" if connection.io_uring else ""
