# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read and write the kernel's settings and counters of each mount, and find FUSE mounts."""

from efuse.control.attributes import Attribute
from efuse.control.connection import (
    CONSISTENCY,
    MOST_RECOVERY_S,
    PATHS,
    PROMISES,
    ROOT,
    Connection,
    DaemonExit,
    ExitInfo,
    connections,
    module_version,
)
from efuse.control.files import KeptFiles
from efuse.control.fusectl import FUSECTL, fuse_connections, fuse_waiting
from efuse.control.mounts import Mount, all_mounts, find, mounts

__all__ = [
    "CONSISTENCY",
    "FUSECTL",
    "MOST_RECOVERY_S",
    "PATHS",
    "PROMISES",
    "ROOT",
    "Attribute",
    "Connection",
    "DaemonExit",
    "ExitInfo",
    "KeptFiles",
    "Mount",
    "all_mounts",
    "connections",
    "find",
    "fuse_connections",
    "fuse_waiting",
    "module_version",
    "mounts",
]
