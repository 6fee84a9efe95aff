# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test where a file ends that an extent of fixed length covers beyond its end."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from tests.guest.support.asynchronous import create_with_held_reply
from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Mount, mounted
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG, random_view
from tests.guest.support.wire import FOPEN_DIRECT_IO, FOPEN_NOFLUSH

_LENGTH = 10 * BLOCK
_MODES = pytest.mark.parametrize("mode", ["exclusive", "ttl"])


def _opened(m: Mount, path: str) -> int:
    """Map all of the file by an extent, and open the file."""
    make(m, "f", fill("d", _LENGTH))
    m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=_LENGTH, write=True)
    return os.open(m / "f", os.O_RDWR)


def _cut(m: Mount) -> None:
    """Let another program make the file shorter, and the daemon announce it."""
    m.model.put("f", fill("d", 50))
    m.call("inval_inode", "f")


@_MODES
def test_write_behind_an_announced_end_is_in_the_file(
    mountpoint: Path, lower: Path, mode: str
) -> None:
    """FUSE still knows the larger size: only the daemon can make the file longer."""
    path = backing(lower, fill("d", _LENGTH))
    with mounted(mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        fd = _opened(m, path)
        _cut(m)
        assert os.pwrite(fd, b"w" * 100, 5 * BLOCK) == 100
        data = bytes(m.call("inode", "f").data)
        size = os.fstat(fd).st_size
        os.close(fd)
        assert size == 5 * BLOCK + 100
        assert data == fill("d", 50).ljust(5 * BLOCK, b"\0") + b"w" * 100


@_MODES
def test_read_ends_at_an_announced_end(mountpoint: Path, lower: Path, mode: str) -> None:
    path = backing(lower, fill("d", _LENGTH))
    with mounted(mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        fd = _opened(m, path)
        _cut(m)
        data = os.pread(fd, BLOCK, 0)
        os.close(fd)
        assert data == fill("d", 50)


# FUSE's attributes end at the first question, and when it stores them.
_NO_TIMEOUT = pytest.mark.parametrize(
    ("mode", "timeouts"),
    [
        ("strict", LONG),
        ("ttl", {"entry_timeout": 0.0, "attr_timeout": 0.0}),
        ("cto", {"entry_timeout": 0.0, "attr_timeout": 0.0}),
    ],
    ids=["strict", "ttl", "cto"],
)


@_NO_TIMEOUT
@pytest.mark.parametrize("asks", [True, False], ids=["fstat", "no fstat"])
def test_extent_of_a_file_with_expired_attributes_ends_at_the_current_size(
    mountpoint: Path, lower: Path, mode: str, timeouts: dict[str, float], asks: bool
) -> None:
    """Another program has made the file shorter, and the daemon has announced nothing."""
    path = backing(lower, fill("d", _LENGTH))
    with mounted(mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **timeouts) as m:
        fd = _opened(m, path)
        assert os.fstat(fd).st_size == _LENGTH
        m.model.put("f", fill("d", 50))
        if asks:
            assert os.fstat(fd).st_size == 50
        read = os.pread(fd, BLOCK, 0)
        assert os.pwrite(fd, b"w" * 100, 5 * BLOCK) == 100
        size = os.fstat(fd).st_size
        data = bytes(m.call("inode", "f").data)
        os.close(fd)
        assert read == fill("d", 50)
        assert size == 5 * BLOCK + 100
        assert data == fill("d", 50).ljust(5 * BLOCK, b"\0") + b"w" * 100


@_NO_TIMEOUT
def test_requests_of_a_file_with_expired_attributes_go_to_the_extent(
    mountpoint: Path, lower: Path, mode: str, timeouts: dict[str, float]
) -> None:
    path = backing(lower, fill("d", _LENGTH))
    with mounted(mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **timeouts) as m:
        fd = _opened(m, path)
        hits = {opcode: m.count(opcode, "hits") for opcode in ("read", "write")}
        m.log()
        for n in range(8):
            assert os.pwrite(fd, b"w" * 100, n * BLOCK) == 100
            assert os.pread(fd, 100, n * BLOCK) == b"w" * 100
        asked = m.asked()
        os.close(fd)
        assert not {"read", "write"} & set(asked)
        assert all(m.count(opcode, "hits") == before + 8 for opcode, before in hits.items())


@_MODES
@pytest.mark.parametrize("how", ["buffered", "direct_io", "mapped"])
def test_requests_within_the_size_of_the_file_go_to_the_extent(
    mountpoint: Path, lower: Path, mode: str, how: str
) -> None:
    path = backing(lower, fill("d", _LENGTH))
    flags = FOPEN_NOFLUSH | (FOPEN_DIRECT_IO if how == "direct_io" else 0)
    with mounted(mountpoint, consistency=mode, open_flags=flags, **LONG) as m:
        fd = _opened(m, path)
        os.fstat(fd)
        view = mmap.mmap(fd, BLOCK, offset=9 * BLOCK) if how == "mapped" else None
        m.log()
        for n in range(8):
            assert os.pwrite(fd, b"w" * 100, n * BLOCK) == 100
            assert os.pread(fd, 100, n * BLOCK) == b"w" * 100
        asked = m.asked()
        if view:
            view.close()
        os.close(fd)
        assert not {"read", "write"} & set(asked)
        assert how == "mapped" or "getattr" not in asked


def test_page_faults_after_a_write_go_to_the_extent(mountpoint: Path, lower: Path) -> None:
    data = fill("d", _LENGTH)
    path = backing(lower, data)
    with mounted(mountpoint, consistency="ttl", open_flags=FOPEN_NOFLUSH, **LONG) as m:
        fd = _opened(m, path)
        os.fstat(fd)
        view = random_view(fd, 10)
        assert os.pwrite(fd, b"w" * 100, 0) == 100
        m.log()
        seen = [view[n * BLOCK : n * BLOCK + 8] for n in range(1, 10)]
        asked = m.asked()
        view.close()
        os.close(fd)
        assert seen == [data[n * BLOCK : n * BLOCK + 8] for n in range(1, 10)]
        assert not asked


def test_write_within_the_file_succeeds_if_the_daemon_refuses_getattr(
    mountpoint: Path, lower: Path
) -> None:
    path = backing(lower, fill("d", _LENGTH))
    with mounted(mountpoint, consistency="ttl", open_flags=FOPEN_NOFLUSH, **LONG) as m:
        fd = _opened(m, path)
        m.call("inval_inode", "f")
        m.call("deny", "getattr", 0, errno.EACCES)
        with m.passed("write"):
            assert os.pwrite(fd, b"w" * 100, BLOCK) == 100
        m.call("deny", "getattr", 0, 0)
        os.close(fd)
        data = bytes(m.call("inode", "f").data)
        assert data[BLOCK : BLOCK + 100] == b"w" * 100


@pytest.mark.parametrize("sync", [True, False], ids=["fsync", "no fsync"])
def test_size_in_an_old_reply_of_a_create_is_not_used(
    mountpoint: Path, lower: Path, sync: bool
) -> None:
    """FUSE takes the size in the reply of a CREATE, although truncate(2) came after it."""
    path = backing(lower, fill("d", _LENGTH))
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("nodeid_per_file",),
        default_permissions=False,  # open(2) asks for no attributes, which might be newer
        open_flags=FOPEN_NOFLUSH,
        **LONG,
    ) as m:
        fd = _opened(m, path)
        opening = create_with_held_reply(m)
        os.ftruncate(fd, 50)
        m.release("create")
        created = opening.result()
        if sync:
            os.fsync(fd)
        read = os.pread(fd, BLOCK, 2 * BLOCK)
        assert os.pwrite(fd, b"w" * 100, 5 * BLOCK) == 100
        data = bytes(m.call("inode", "f").data)
        os.close(created)
        os.close(fd)
        assert read == b""
        assert data == fill("d", 50).ljust(5 * BLOCK, b"\0") + b"w" * 100


@_MODES
@pytest.mark.parametrize("how", ["read", "map"])
def test_read_continues_in_the_next_extent_after_the_end_of_a_backing_file(
    mountpoint: Path, lower: Path, mode: str, how: str
) -> None:
    """The first extent was mapped to the end of the file, a later one took its tail."""
    head = backing(lower, fill("h", BLOCK), "head")
    tail = backing(lower, fill("t", 8 * BLOCK), "tail")
    data = fill("h", BLOCK).ljust(4 * BLOCK, b"\0") + fill("t", 8 * BLOCK)[: 4 * BLOCK]
    with mounted(mountpoint, consistency=mode, open_flags=FOPEN_NOFLUSH, **LONG) as m:
        make(m, "f", data)
        whole(m, head)
        m.call("map_extent", "f", tail, os.O_RDWR, offset=4 * BLOCK, length=4 * BLOCK)
        fd = os.open(m / "f", os.O_RDONLY)
        if how == "map":
            with mmap.mmap(fd, len(data), prot=mmap.PROT_READ) as view:
                assert view[:] == data
        seen = os.pread(fd, len(data), 0)
        os.close(fd)
        assert seen == data
