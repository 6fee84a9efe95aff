# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test extents that change while data moves through them, and which tasks wait for which.

A busy lower file keeps a WRITE in flight for as long as a test needs.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.errors import MountError
from efuse.fs.extents import Extent, map_extent, unmap_extents
from efuse.fs.mountpoint import unmount
from tests.guest.support.backing_files import backing, make, map_error, whole
from tests.guest.support.busy_file import busy, wait_until_below
from tests.guest.support.daemons import Call, Mount, eventually, mounted, some_task_waits_in
from tests.guest.support.file_data import BLOCK, fill, read_direct, write
from tests.guest.support.scripted_daemon import Options
from tests.guest.support.small_disk import frozen
from tests.guest.support.wire import FOPEN_NOFLUSH


@contextlib.contextmanager
def writing(m: Mount, path: str, data: bytes) -> Iterator[Call[int]]:
    """Keep a WRITE of a file's first bytes waiting for the lower file."""
    with busy(path):
        writer = Call(write, m / "f", data)
        wait_until_below(writer)
        yield writer


class Told(threading.Thread):
    """A thread that lets the daemon change extents while the test goes on."""

    def __init__(self, m: Mount, *args: object, **kwargs: object) -> None:
        super().__init__(daemon=True)
        self._told = (m, args, kwargs)
        self.start()

    def run(self) -> None:
        m, args, kwargs = self._told
        m.call(*args, **kwargs)  # type: ignore[arg-type]

    def waits(self, m: Mount) -> None:
        """Wait until the daemon waits for uses of an extent."""
        stack = Path(f"/proc/{m.pid}/stack")
        eventually(lambda: "efuse_uses_wait" in stack.read_text(), "the daemon waits")


def pieces(m: Mount, first: str, second: str) -> None:
    """Map two blocks of ``f`` for writing, each to a file of its own."""
    make(m, "f", fill("d", 2 * BLOCK))
    for number, path in enumerate((first, second)):
        m.call(
            "map_extent", "f", path, os.O_RDWR, offset=number * BLOCK, length=BLOCK, write=True
        )  # fmt: skip


def test_write_in_flight_does_not_go_into_an_extent_remapped_for_reading(
    mountpoint: Path, lower: Path, slow: Path
) -> None:
    """A daemon does this if the second half of a file becomes shared: writes must copy it first."""
    first = backing(slow, fill("a", BLOCK))
    second, shared = backing(lower, fill("b", BLOCK)), backing(lower, fill("s", BLOCK), "shared")
    data = fill("w", 2 * BLOCK)
    with mounted(mountpoint, entry_timeout=60.0, attr_timeout=60.0) as m:
        pieces(m, first, second)
        with writing(m, first, data) as writer:
            m.call("map_extent", "f", shared, os.O_RDONLY, offset=BLOCK, length=BLOCK)
        assert writer.result() == 2 * BLOCK
        assert Path(first).read_bytes() == data[:BLOCK]
        assert Path(second).read_bytes() == fill("b", BLOCK)
        assert Path(shared).read_bytes() == fill("s", BLOCK)
        # The daemon got the rest.
        assert bytes(m.call("inode", "f").data[BLOCK:]) == data[BLOCK:]
        assert "write" in m.asked()


@pytest.mark.parametrize("how", ["map_extent", "unmap_extents"])
def test_map_or_unmap_of_an_extent_waits_for_writes_through_it(
    mountpoint: Path, lower: Path, slow: Path, how: str
) -> None:
    old, new = backing(slow, fill("a", BLOCK)), backing(lower, fill("n", BLOCK))
    with mounted(mountpoint, entry_timeout=60.0, attr_timeout=60.0) as m:
        make(m, "f", fill("d", BLOCK))
        whole(m, old, write=True)
        with writing(m, old, fill("w", BLOCK)) as writer:
            arguments = (new, os.O_RDONLY) if how == "map_extent" else ()
            told = Told(m, how, "f", *arguments)
            told.waits(m)
        told.join()
        # By now, all I/O that was in flight has ended.
        assert Path(old).read_bytes() == fill("w", BLOCK)
        assert writer.result() == BLOCK
        assert Path(new).read_bytes() == fill("n", BLOCK)


@pytest.mark.parametrize("how", ["map_extent", "unmap_extents", "version"])
def test_map_or_unmap_of_a_part_of_an_extent_waits_for_writes_through_it(
    mountpoint: Path, lower: Path, slow: Path, how: str
) -> None:
    """The rest of the extent stays mapped and is used again, unless its version is old."""
    base = backing(slow, fill("a", 2 * BLOCK))
    hot = backing(lower, fill("h", BLOCK), "hot")
    with mounted(mountpoint, entry_timeout=60.0, attr_timeout=60.0) as m:
        make(m, "f", fill("d", 2 * BLOCK))
        whole(m, base, write=True)
        with writing(m, base, fill("w", BLOCK)) as writer:
            if how == "map_extent":
                told = Told(m, how, "f", hot, os.O_RDONLY, offset=0, length=BLOCK)
            elif how == "unmap_extents":
                told = Told(m, how, "f", offset=0, length=BLOCK)
            else:
                told = Told(m, "unmap_extents", "f", offset=9 * BLOCK, length=1, version=7)
            told.waits(m)
        told.join()
        # By now, all I/O that was in flight has ended.
        assert Path(base).read_bytes() == fill("w", BLOCK) + fill("a", 2 * BLOCK)[BLOCK:]
        assert writer.result() == BLOCK
        first, second = {
            "map_extent": (fill("h", BLOCK), fill("a", 2 * BLOCK)[BLOCK:]),
            "unmap_extents": (fill("d", BLOCK), fill("a", 2 * BLOCK)[BLOCK:]),
            "version": (fill("d", BLOCK), fill("d", 2 * BLOCK)[BLOCK:]),
        }[how]
        assert read_direct(m / "f", BLOCK) == first
        assert read_direct(m / "f", BLOCK, BLOCK) == second


def test_second_partial_unmap_waits_for_writes_from_before_the_first(
    mountpoint: Path, lower: Path, slow: Path
) -> None:
    base = backing(slow, fill("a", 2 * BLOCK))
    with mounted(mountpoint, entry_timeout=60.0, attr_timeout=60.0) as m:
        make(m, "f", fill("d", 2 * BLOCK))
        whole(m, base, write=True)
        device, nodeid = m.device(), m.call("nodeid", "f")
        with writing(m, base, fill("w", 2 * BLOCK)) as writer:
            first = Told(m, "unmap_extents", "f", offset=0, length=BLOCK)
            first.waits(m)
            second = Call(unmap_second_block, device, nodeid)
            eventually(lambda: "efuse_uses_wait" in second.within(), "it waits, too")
        assert second.result() is None
        # By now, all I/O that was in flight has ended.
        assert Path(base).read_bytes() == fill("w", 2 * BLOCK)
        first.join()
        assert writer.result() == 2 * BLOCK
        os.close(device)


def unmap_second_block(device: int, nodeid: int) -> None:
    unmap_extents(device, nodeid, offset=BLOCK, length=BLOCK)


def test_rest_of_an_extent_is_read_while_a_partial_unmap_waits(
    mountpoint: Path, lower: Path, slow: Path
) -> None:
    """A read that begins while the unmap waits for earlier writes does not wait."""
    base = backing(slow, fill("a", 2 * BLOCK))
    # The daemon waits, so it must not get a FLUSH either.
    times = {"entry_timeout": 60.0, "attr_timeout": 60.0, "open_flags": FOPEN_NOFLUSH}
    with mounted(mountpoint, path="direct", **times) as m:
        make(m, "f", fill("d", 2 * BLOCK))
        whole(m, base, write=True)
        fd = os.open(m / "f", os.O_RDONLY)
        with writing(m, base, fill("w", BLOCK)) as writer:
            told = Told(m, "unmap_extents", "f", offset=0, length=BLOCK)
            told.waits(m)
            reader = Call(os.pread, fd, BLOCK, BLOCK)
            assert reader.result() == fill("a", 2 * BLOCK)[BLOCK:]
            assert told.is_alive()
        told.join()
        assert writer.result() == BLOCK
        os.close(fd)


def test_map_after_unmount_fails(mountpoint: Path, lower: Path) -> None:
    """Otherwise the backing file would stay open for as long as the daemon's device is open."""
    path = backing(lower, fill("o", BLOCK))
    m = Mount(mountpoint, Options())
    try:
        make(m, "f", fill("d", BLOCK))
        device = m.device()
        unmount(str(m.path))
        fd = os.open(path, os.O_RDWR)
        with pytest.raises(MountError, match="ENOTCONN"):
            map_extent(device, Extent(4711, fd, write=True, new=True))
        os.close(fd)
        os.close(device)
    finally:
        m.close()


def test_unmount_does_not_wait_for_a_frozen_lower_file_system(mountpoint: Path, slow: Path) -> None:
    """The written pages of the backing file stay dirty below when it is closed."""
    base, data = backing(slow, fill("a", BLOCK)), fill("w", BLOCK)
    m = Mount(mountpoint, Options(entry_timeout=60.0, attr_timeout=60.0))
    try:
        make(m, "f", fill("d", BLOCK))
        whole(m, base, write=True)
        assert write(m / "f", data) == BLOCK
        assert "write" not in m.asked()
        with frozen(slow):
            unmount(str(m.path))
        assert Path(base).read_bytes() == data
    finally:
        m.close()


def test_lazy_unmount_does_not_wait_for_a_write_that_is_stuck_below(
    mountpoint: Path, slow: Path
) -> None:
    base, data = backing(slow, fill("a", BLOCK)), fill("w", BLOCK)
    m = Mount(mountpoint, Options(entry_timeout=60.0, attr_timeout=60.0))
    try:
        make(m, "f", fill("d", BLOCK))
        whole(m, base, write=True)
        with writing(m, base, data) as writer:
            unmount(str(m.path), lazy=True)
        assert writer.result() == BLOCK
        assert "write" not in m.asked()
        assert Path(base).read_bytes() == data
    finally:
        m.close()


def test_seal_during_a_write_to_the_backing_file_fails(
    source: Mount, mountpoint: Path, lower: Path
) -> None:
    """The write changes the file's version before it copies any bytes."""
    path = backing(lower, fill("o", 2 * BLOCK))
    with mounted(mountpoint) as m:
        make(source, "source", fill("n", BLOCK))
        make(m, "f", fill("d", 2 * BLOCK))
        source.hold("read", "before")

        def long() -> int:
            pages = mmap.mmap(os.open(source / "source", os.O_RDONLY), BLOCK, prot=mmap.PROT_READ)
            return os.pwritev(os.open(path, os.O_RDWR), [fill("n", BLOCK), memoryview(pages)], 0)

        call = Call(long)
        source.wait_held()
        sealed = {"sealed": True}
        assert map_error(m, "f", path, os.O_RDONLY, **sealed) == errno.ETXTBSY
        source.release()
        assert call.result() == 2 * BLOCK
        m.call("map_extent", "f", path, os.O_RDONLY, **sealed)
        with m.answered("read"):
            assert read_direct(m / "f", 2 * BLOCK) == fill("n", BLOCK) * 2


@pytest.mark.parametrize("how", ["map_extent", "unmap_extents"])
def test_extents_of_another_file_change_without_waiting(
    mountpoint: Path, lower: Path, slow: Path, how: str
) -> None:
    with mounted(mountpoint, entry_timeout=60.0, attr_timeout=60.0) as m:
        make(m, "f", fill("d", BLOCK))
        make(m, "g", fill("d", BLOCK))
        base = backing(slow, fill("a", BLOCK))
        whole(m, base, write=True)
        m.call("map_extent", "g", backing(lower, fill("b", BLOCK)), os.O_RDONLY)
        with writing(m, base, fill("w", BLOCK)) as writer:
            new = (backing(lower, fill("n", BLOCK), "n"), os.O_RDONLY)
            m.call(how, "g", *(new if how == "map_extent" else ()))
            expected = fill("n" if how == "map_extent" else "d", BLOCK)
            assert read_direct(m / "g", BLOCK) == expected
            assert not writer.done()
        assert writer.result() == BLOCK


@pytest.mark.parametrize("which", ["first", "second"])
def test_unmap_does_not_wait_for_io_through_another_extent(
    mountpoint: Path, lower: Path, slow: Path, which: str
) -> None:
    """An unmap of parts of both extents waits for the WRITE through the busy one."""
    paths = [backing(slow, fill("a", 2 * BLOCK)), backing(lower, fill("b", 2 * BLOCK))]
    if which == "second":
        paths.reverse()
    with mounted(mountpoint, open_flags=FOPEN_NOFLUSH, entry_timeout=60.0, attr_timeout=60.0) as m:
        make(m, "f", fill("d", 4 * BLOCK))
        for number, path in enumerate(paths):
            m.call("map_extent", "f", path, os.O_RDWR, offset=2 * number * BLOCK,
                   length=2 * BLOCK, write=True)  # fmt: skip
        device, nodeid = m.device(), m.call("nodeid", "f")
        with busy(paths[0] if which == "first" else paths[1]):
            writer = Call(write, m / "f", fill("w", BLOCK), 0 if which == "first" else 3 * BLOCK)
            wait_until_below(writer)
            both = Told(m, "unmap_extents", "f", offset=BLOCK, length=2 * BLOCK)
            both.waits(m)
            idle = 3 * BLOCK if which == "first" else 0
            assert Call(_unmapped, device, nodeid, idle).result() == 0
            assert not writer.done()
        both.join()
        assert writer.result() == BLOCK
        os.close(device)


def _unmapped(device: int, nodeid: int, offset: int) -> int:
    unmap_extents(device, nodeid, offset=offset, length=BLOCK)
    return 0


def store(path: str, data: bytes) -> int:
    """Store to a file through a memory map, and wait until it is written back."""
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, len(data)) as view:
        view[:] = data
        view.flush()
    os.close(fd)
    return len(data)


def test_write_back_of_a_slow_file_does_not_delay_another(
    mountpoint: Path, lower: Path, slow: Path
) -> None:
    paths = {"f": backing(slow, fill("a", BLOCK)), "g": backing(lower, fill("b", BLOCK))}
    with mounted(mountpoint, entry_timeout=60.0, attr_timeout=60.0, consistency="exclusive") as m:
        for name, path in paths.items():
            make(m, name, fill("d", BLOCK))
            m.call("map_extent", name, path, os.O_RDWR, write=True)
        m.log()
        with busy(paths["f"]):
            stuck = Call(store, m / "f", fill("w", BLOCK))
            eventually(
                lambda: some_task_waits_in("efuse_deferred_work", "ext4_buffered_write_iter"),
                "a worker waits below",
            )
            assert Call(store, m / "g", fill("v", BLOCK)).result() == BLOCK
            assert Path(paths["g"]).read_bytes() == fill("v", BLOCK)
            assert not stuck.done()
        assert stuck.result() == BLOCK
        assert Path(paths["f"]).read_bytes() == fill("w", BLOCK)
        assert "write" not in m.asked()
