# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lookups that the kernel answers, and the FORGETs that must not follow from them.

Each mount shows at its end that every lookup the daemon granted came back, and none twice.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.guest.daemons import Mount, mounted

LONG = 3600.0


def _hard_links(m: Mount, names: int = 3) -> int:
    """Make links to one file; return it opened, so that it is alive without their names."""
    m.truth.create("f0", b"data")
    for i in range(1, names):
        os.link(m / "f0", m / f"f{i}")
    return os.open(m / "f0", os.O_RDONLY)


@pytest.mark.parametrize("consistency", ["ttl", "cto", "exclusive"])
def test_lookup_of_alive_inode_answered_and_balanced(mountpoint: Path, consistency: str) -> None:
    with mounted(mountpoint, consistency=consistency, entry_timeout=LONG, attr_timeout=LONG) as m:
        fd = _hard_links(m)
        m.drop()
        os.stat(m / "f1")
        for _ in range(5):
            m.drop()
            with m.answered("lookup"):
                assert os.stat(m / "f1").st_ino == os.fstat(fd).st_ino
        os.close(fd)


def test_lookup_counts_with_the_systems_caches_dropped(mountpoint: Path) -> None:
    with mounted(mountpoint, entry_timeout=LONG, attr_timeout=LONG) as m:
        fd = _hard_links(m)
        os.stat(m / "f2")
        before = m.count("lookup", "hits")
        for what in ("2", "3", "2"):
            Path("/proc/sys/vm/drop_caches").write_text(what)
            m.drop()
            assert os.stat(m / "f2").st_size == 4
        assert m.count("lookup", "hits") - before == 3
        os.close(fd)
