# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test which block of the data cache counts as the last one of its file in exclusive mode."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.support.asynchronous import (
    ASYNC_DIO,
    PWRITE,
    Asynchronous,
    Block,
    Queue,
    create_with_held_reply,
)
from tests.guest.support.backing_files import make
from tests.guest.support.daemons import Mount, mounted, running
from tests.guest.support.file_data import BLOCK, SIZE, fill, pread_direct, read
from tests.guest.support.file_pages import LONG
from tests.guest.support.wire import FOPEN_NOFLUSH


def test_block_read_up_to_an_outdated_size_is_not_cached_as_the_last_one(
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


def test_last_block_of_a_truncated_file_is_void_after_a_write_behind_it(
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


@pytest.mark.parametrize("declare", [(), ("nodeid_per_file",)], ids=["names are asked", "one name"])
def test_last_block_of_a_file_that_fuse_takes_for_longer_is_void_after_a_write_behind_it(
    mountpoint: Path, declare: tuple[str, ...]
) -> None:
    """The kernel knows the right size, but FUSE drops the reply: a direct read has completed.

    The WRITE begins behind the end of the file, and ends before the end that FUSE knows.
    """
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=declare,
        generic_flags=ASYNC_DIO,
        open_flags=FOPEN_NOFLUSH,
        **LONG,
    ) as m:
        make(m, "f", fill("d"))
        fd = os.open(m / "f", os.O_WRONLY)
        direct = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        os.fstat(fd)  # the read below asks for nothing
        m.hold("read", "after")
        reads = Asynchronous(direct, 1)
        m.wait_held()
        m.model.put("f", fill("d")[:5000])
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        with running(pread_direct, direct, BLOCK, BLOCK) as reading:
            m.wait_held(2)
            m.release("read")
            assert reads.wait() == BLOCK
            m.release()
            assert reading.result() == fill("d")[BLOCK:5000]
        assert os.pwrite(fd, b"w" * 100, 3 * BLOCK) == 100
        data = bytes(m.call("inode", "f").data)
        assert data == fill("d")[:5000] + bytes(3 * BLOCK - 5000) + b"w" * 100
        assert pread_direct(direct, BLOCK, BLOCK) == data[BLOCK : 2 * BLOCK]
        assert read(m / "f") == data
        reads.close()
        os.close(direct)
        os.close(fd)


def _cut_by_another(m: Mount) -> None:
    m.model.put("f", fill("d", 50))
    m.call("inval_inode", "f")


@pytest.mark.parametrize(
    "cut",
    [_cut_by_another, lambda m: os.truncate(m / "f", 50)],
    ids=["by another program", "truncate"],
)
def test_last_block_of_a_truncated_file_is_void_during_a_write_that_extends_it(
    mountpoint: Path, cut: Callable[[Mount], None]
) -> None:
    """The WRITE was issued when the file was longer: it does not count as one that extends."""
    size = 6 * BLOCK
    block = Block(b"w" * BLOCK)
    writes = Queue()
    with mounted(
        mountpoint,
        consistency="exclusive",
        generic_flags=ASYNC_DIO,
        open_flags=FOPEN_NOFLUSH,
        **LONG,
    ) as m:
        make(m, "f", fill("d", size))
        direct = os.open(m / "f", os.O_WRONLY | os.O_DIRECT)
        fd = os.open(m / "f", os.O_RDONLY)
        m.hold("write", "before")
        writes.submit(PWRITE, direct, block.address, BLOCK, 5 * BLOCK)
        m.wait_held()
        cut(m)
        assert os.pread(fd, BLOCK, 0) == fill("d", 50)
        held = m.call("_held.pop", 0)
        answer = m.call("_answer", held.request)  # the daemon carries the WRITE out
        seen = os.fstat(fd).st_size
        data = os.pread(fd, BLOCK, 0)
        m.call("_send", answer)
        assert writes.results(1) == [BLOCK]
        writes.close()
        os.close(fd)
        os.close(direct)
        assert seen == size
        assert data == fill("d", 50) + bytes(BLOCK - 50)


def test_cached_blocks_of_a_known_file_are_not_read_after_a_create_truncated_it(
    mountpoint: Path,
) -> None:
    """Another program gave the file a second name, which the CREATE opens."""
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("nodeid_per_file",),
        open_flags=FOPEN_NOFLUSH,
        **LONG,
    ) as m:
        make(m, "f", fill("d"))
        fd = os.open(m / "f", os.O_RDWR)
        opening = create_with_held_reply(m, os.O_TRUNC, "before")
        m.call("inval_inode", "f")
        assert os.pread(fd, SIZE, 0) == fill("d")
        m.release()
        created = opening.result()
        assert os.pwrite(fd, b"w" * 100, 2 * BLOCK) == 100
        data = os.pread(fd, SIZE, 0)
        os.close(created)
        os.close(fd)
        assert data == bytes(2 * BLOCK) + b"w" * 100
