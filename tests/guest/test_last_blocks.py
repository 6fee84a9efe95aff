# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test which block of the data cache counts as the last one of its file in exclusive mode."""

from __future__ import annotations

import os
from pathlib import Path

from tests.guest.support.backing_files import make
from tests.guest.support.daemons import mounted, running
from tests.guest.support.file_data import BLOCK, SIZE, fill, pread_direct, read
from tests.guest.support.file_pages import LONG
from tests.guest.support.wire import FOPEN_NOFLUSH


def test_block_that_ended_at_a_size_that_fuse_still_knew_is_not_the_last_one(
    mountpoint: Path,
) -> None:
    """The direct READ got all of its bytes, and ended where FUSE believed the end.

    The file had become longer, which was announced before the READ was sent.
    """
    with mounted(mountpoint, consistency="exclusive", open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("d")[:5000])
        direct = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        with running(pread_direct, direct, 5000 - BLOCK, BLOCK) as reading:
            m.wait_held()  # the reply has the old size
            m.model.put("f", fill("d"))
            m.call("inval_attributes", "f")  # FUSE drops the reply
            m.release()
            assert reading.result() == fill("d")[BLOCK:5000]
        seen = len(pread_direct(direct, BLOCK, BLOCK))
        pages = len(read(m / "f"))  # FUSE's size becomes 5000, and counts as valid
        end = os.lseek(fd, 0, os.SEEK_END)
        os.write(fd, b"appended")
        data = bytes(m.call("inode", "f").data)
        os.close(direct)
        os.close(fd)
        assert (seen, pages, end, len(data)) == (BLOCK, SIZE, SIZE, SIZE + 8)
        assert data == fill("d") + b"appended"


def test_block_that_ended_a_cut_file_is_not_the_last_one_after_a_write_behind_it(
    mountpoint: Path,
) -> None:
    """FUSE still knows the larger size: the WRITE does not count as one that extends."""
    with mounted(mountpoint, consistency="exclusive", open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", fill("d"))
        fd = os.open(m / "f", os.O_WRONLY)
        direct = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        with running(pread_direct, direct, BLOCK, BLOCK) as reading:
            m.wait_held()
            m.model.put("f", fill("d")[:5000])
            m.call("inval_attributes", "f")
            m.release()
            assert reading.result() == fill("d")[BLOCK:5000]
        assert os.pwrite(fd, b"w" * 100, 3 * BLOCK) == 100
        data = bytes(m.call("inode", "f").data)
        assert len(data) == 3 * BLOCK + 100
        seen = pread_direct(direct, BLOCK, BLOCK)
        pages = read(m / "f")
        end = os.lseek(fd, 0, os.SEEK_END)
        os.close(direct)
        os.close(fd)
        assert (len(seen), len(pages), end) == (BLOCK, len(data), len(data))
        assert pages == data
