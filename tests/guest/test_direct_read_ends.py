# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test where a direct read ends: the daemon decides, not the size that FUSE knows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.guest.support.backing_files import make
from tests.guest.support.daemons import force_stat, mounted, running
from tests.guest.support.data_cache import cached
from tests.guest.support.file_data import BLOCK, SIZE, fill, read_direct
from tests.guest.support.file_pages import LONG
from tests.guest.support.manual_daemon import until
from tests.guest.support.wire import FOPEN_KEEP_CACHE, FOPEN_NOFLUSH

_KEEP = FOPEN_NOFLUSH | FOPEN_KEEP_CACHE
_ASYNC_DIO = 1 << 15
_both_ways = pytest.mark.parametrize("dio", [0, _ASYNC_DIO], ids=["dio", "async_dio"])


@_both_ways
def test_direct_read_of_the_last_block_asks_for_the_whole_block(mountpoint: Path, dio: int) -> None:
    """A daemon that passes O_DIRECT on cannot read a part of a block."""
    with mounted(mountpoint, generic_flags=dio, **LONG) as m:
        make(m, "f", fill("d", BLOCK + 100))
        m.call("reads")
        assert read_direct(m / "f", BLOCK, BLOCK) == fill("d", BLOCK + 100)[BLOCK:]
        assert [(offset, size) for offset, size in m.call("reads")] == [(BLOCK, BLOCK)]


@_both_ways
def test_direct_read_shows_bytes_behind_the_end_that_fuse_knows(mountpoint: Path, dio: int) -> None:
    """The file's attributes are still valid. On plain FUSE the daemon decides where it ends."""
    with mounted(mountpoint, generic_flags=dio, **LONG) as m:
        make(m, "f", b"d" * 100)
        m.model.put("f", b"d" * 100 + b"n" * 100)
        assert read_direct(m / "f", BLOCK) == b"d" * 100 + b"n" * 100


@_both_ways
def test_end_of_a_file_that_was_read_directly_is_kept(mountpoint: Path, dio: int) -> None:
    """In ttl only a short READ tells where a file ends."""
    with cached(mountpoint, consistency="ttl", generic_flags=dio, **LONG) as m:
        assert read_direct(m / "f", SIZE + BLOCK) == fill("d")
        m.log()
        assert read_direct(m / "f", SIZE + BLOCK) == fill("d")
        assert "read" not in m.asked()


@_both_ways
def test_rest_of_a_short_direct_read_shows_no_zeros_if_the_file_grew_during_a_write(
    mountpoint: Path, dio: int
) -> None:
    """Linux takes the rest of a short direct read from the pages. The page is being written."""
    with mounted(mountpoint, attach=False, open_flags=_KEEP, generic_flags=dio, **LONG) as m:
        make(m, "f", b"d" * 100)
        fd = os.open(m / "f", os.O_RDWR)
        assert os.pread(fd, BLOCK, 0) == b"d" * 100
        m.hold("read", "after")
        with running(read_direct, m / "f", BLOCK) as reading:
            m.wait_held()
            m.hold("write", "before")
            with running(os.pwrite, fd, b"ww", 0) as writing:
                m.wait_held(2)
                m.model.put("f", b"d" * 100 + b"n" * 100)
                assert force_stat(fd).st_size == 200
                m.release("read")
                until(lambda: reading.done() or m.keeps_waiting(reading, 1))
                m.release()
                assert writing.result() == 2
                seen = reading.result()
        os.close(fd)
        assert seen in (b"d" * 100, b"d" * 100 + b"n" * 100)
