# SPDX-License-Identifier: LGPL-2.1-or-later
"""Empty the kernel's caches before a cold workload."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["drop_caches"]

_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def drop_caches(*, dentries: bool = False) -> None:
    """Write back dirty pages and empty the page cache.

    :param dentries: also empty the caches of dentries and inodes.
    """
    os.sync()
    _DROP_CACHES.write_text("3" if dentries else "1")
