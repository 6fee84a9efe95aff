# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that attributes which the kernel has learned are not shown after newer ones.

The newer ones come in replies that are not learned. Another program has changed the file, so the
kernel does not know of the change. FUSE takes the newer attributes, and asks for them again when it
needs others, or for another name of the file.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.guest.support.daemons import birth_stat, eventually, mounted, running

_LONG = 600.0
_TIMEOUTS = {"entry_timeout": _LONG, "attr_timeout": _LONG}


def test_lookup_after_statx_shows_nothing_older(mountpoint: Path) -> None:
    with mounted(mountpoint, statx=True, **_TIMEOUTS) as m:
        m.model.create("f", b"old bytes")
        m.model.hard_link("f", "g")
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.stat(m / "g").st_size == 9
        m.drop()
        m.model.put("f", b"new")
        assert birth_stat(fd).st_size == 3
        assert os.stat(m / "g").st_size == 3
        os.close(fd)


def test_getattr_after_statx_shows_nothing_older(mountpoint: Path) -> None:
    """A read(2) makes FUSE ask for the access time."""
    with mounted(mountpoint, statx=True, declare=("lazy_atime",), **_TIMEOUTS) as m:
        m.model.create("f", b"old bytes")
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.fstat(fd).st_size == 9
        m.model.put("f", b"new")
        assert birth_stat(fd).st_size == 3
        assert os.pread(fd, 9, 0) == b"new"
        assert os.fstat(fd).st_size == 3
        os.close(fd)


def test_attributes_without_a_timeout_end_those_that_were_learned(mountpoint: Path) -> None:
    with mounted(mountpoint, entry_timeout=0.0, attr_timeout=_LONG) as m:
        m.model.create("f", b"old bytes")
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.stat(m / "f").st_size == 9
        m.model.put("f", b"new")
        m.call("answer_with", attr_timeout=0.0)
        # The LOOKUP of the name brings attributes.
        assert os.stat(m / "f").st_size == 3
        os.close(fd)


def test_listing_is_not_learned_over_a_later_lookup_of_an_evicted_inode(mountpoint: Path) -> None:
    with mounted(mountpoint, declare=("stable_nodeids",), **_TIMEOUTS) as m:
        m.model.create("f", b"old bytes")
        m.hold("readdirplus", "after")
        with running(os.listdir, m.path) as listing:
            m.wait_held()
            m.model.put("f", b"new")
            assert os.stat(m / "f").st_size == 3
            before = m.call("counts")
            m.drop()
            eventually(lambda: m.call("counts") != before, "the inode was not forgotten")
            m.release()
            assert "f" in listing.result()
        assert os.stat(m / "f").st_size == 3
