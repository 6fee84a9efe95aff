# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much memory the kernel's own structures take."""

from __future__ import annotations

import re
from pathlib import Path

_SLAB = Path("/sys/kernel/slab")


def _caches() -> list[Path]:
    """Return the directories of the slab caches, without the links to those that are merged."""
    return [path for path in sorted(_SLAB.iterdir()) if not path.is_symlink()]


def _number(path: Path) -> int:
    return int(path.read_text().split()[0])


def used(*, reclaimable: bool) -> int:
    """Return the bytes of all slab objects, and of the memory of per-CPU variables and vmalloc.

    :param reclaimable: whether to count inodes and directory entries that nothing uses. Otherwise
        they are freed first.
    """
    if not reclaimable:
        for _ in range(2):
            # The first round frees inodes, and the second one what these held.
            Path("/proc/sys/vm/drop_caches").write_text("3")
    caches = _caches()
    for cache in caches:
        # CPUs give back the slabs that they allocate from, whose free objects count as used.
        (cache / "shrink").write_text("1")
    total = sum(_number(cache / "objects") * _number(cache / "slab_size") for cache in caches)
    text = Path("/proc/meminfo").read_text()
    pages = dict(re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE))
    return total + 1024 * (int(pages["Percpu"]) + int(pages["VmallocUsed"]))
