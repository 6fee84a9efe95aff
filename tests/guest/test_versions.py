# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that data outlives its timeout while its file has the same version, and no longer.

The version is made of the mtime, the ctime and the size that the daemon reports. The times of
`ModelFileSystem` are years old, and differ after each change.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guest.support.backing_files import make
from tests.guest.support.daemons import Mount, eventually, force_stat, mounted
from tests.guest.support.file_data import BLOCK, SIZE, drop_pages, fill, read

# Without the data cache, whose blocks answer in ttl mode for as long as attributes are valid.
_OPTIONS: dict[str, Any] = {
    "entry_timeout": 0.0,
    "attr_timeout": 600.0,
    "capacity": {"blocks": 0},
}
_LOOKED_UP = [0.0, 600.0]
each_mode = pytest.mark.parametrize("consistency", ["ttl", "cto"])
each_timeout = pytest.mark.parametrize("entry_timeout", _LOOKED_UP, ids=["looked up", "known name"])


@contextlib.contextmanager
def _file(mountpoint: Path, data: bytes = fill("a"), **options: Any) -> Iterator[Mount]:
    """Mount a file system with a file ``f`` whose name and attributes are not learned."""
    with mounted(mountpoint, **{**_OPTIONS, **options}) as m:
        make(m, "f", data)
        yield m


def _expire(m: Mount, seconds: float = 1.0) -> None:
    """Wait until attributes that have come by now are not valid any more."""
    end = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > end)


def _reads(m: Mount, expected: bytes, name: str = "f") -> bool:
    """Open and read the whole file; return whether the daemon was asked for data."""
    m.log()
    assert read(m / name, len(expected) + 1) == expected
    return "read" in m.asked()


@each_mode
@each_timeout
def test_pages_of_an_unchanged_file_are_kept_over_an_open(
    mountpoint: Path, consistency: str, entry_timeout: float
) -> None:
    with _file(mountpoint, consistency=consistency, entry_timeout=entry_timeout) as m:
        assert _reads(m, fill("a"))
        for _ in range(3):
            assert not _reads(m, fill("a"))


def test_pages_are_kept_without_a_getattr_where_the_data_cache_could_answer(
    mountpoint: Path,
) -> None:
    with _file(mountpoint, entry_timeout=600.0, capacity={}) as m:
        assert _reads(m, fill("a"))
        m.log()
        assert read(m / "f") == fill("a")
        assert not {"read", "getattr", "lookup"} & set(m.asked())


@each_mode
def test_open_of_a_file_without_pages_sends_no_getattr(mountpoint: Path, consistency: str) -> None:
    with _file(mountpoint, consistency=consistency, entry_timeout=600.0) as m:
        for _ in range(2):
            m.log()
            os.close(os.open(m / "f", os.O_RDONLY))
            asked = m.asked()
            assert "getattr" not in asked[asked.index("open") :]


@each_mode
@each_timeout
def test_open_after_a_change_behind_the_mount_reads_the_new_data(
    mountpoint: Path, consistency: str, entry_timeout: float
) -> None:
    """The new data is as long, shorter, or longer, and may have the old mtime."""
    with _file(mountpoint, consistency=consistency, entry_timeout=entry_timeout) as m:
        assert _reads(m, fill("a"))
        mtime_ns = m.call("inode", "f").mtime_ns
        for letter, size in ("b", SIZE), ("c", SIZE - 5000), ("d", SIZE + 5000):
            for kept in False, True:
                data = fill(letter.upper() if kept else letter, size)
                m.model.put("f", data)
                if kept:
                    m.model.set_times("f", mtime_ns, m.call("inode", "f").ctime_ns)
                assert _reads(m, data)
                # Where the name is known, the file was opened before its new version was.
                if entry_timeout:
                    assert _reads(m, data)
                assert not _reads(m, data)


@pytest.mark.parametrize("consistency", ["ttl", "cto"])
def test_maps_of_a_kept_file_show_its_data(mountpoint: Path, consistency: str) -> None:
    with _file(mountpoint, consistency=consistency) as m:
        for letter in "ab":
            m.model.put("f", fill(letter))
            assert _reads(m, fill(letter))
            fd = os.open(m / "f", os.O_RDONLY)
            m.log()
            with mmap.mmap(fd, SIZE, prot=mmap.PROT_READ) as mapped:
                assert mapped[:] == fill(letter)
            assert "read" not in m.asked()
            os.close(fd)


@pytest.mark.parametrize(
    "without",
    [
        {"consistency": "strict"},
        {"attr_timeout": 0.0},
        {"attach": False},
        {"generic_flags": 1 << 16},  # FUSE_WRITEBACK_CACHE
    ],
    ids=["strict", "no timeout", "no handlers", "write-back"],
)
def test_pages_are_dropped_where_versions_are_not_used(
    mountpoint: Path, without: dict[str, Any]
) -> None:
    with _file(mountpoint, **without) as m:
        for _ in range(3):
            assert _reads(m, fill("a"))


def test_pages_are_dropped_if_revalidation_is_off(mountpoint: Path) -> None:
    with _file(mountpoint) as m:
        assert m.connection.revalidate
        m.connection.revalidate = False
        for _ in range(3):
            assert _reads(m, fill("a"))
        m.connection.revalidate = True
        assert _reads(m, fill("a"))
        assert not _reads(m, fill("a"))


def test_pages_are_dropped_if_the_daemon_reports_no_times(mountpoint: Path) -> None:
    with _file(mountpoint) as m:
        m.model.set_times("f", 0, 0)
        for _ in range(3):
            assert _reads(m, fill("a"))


@each_mode
def test_change_that_leaves_recent_times_as_they_were_is_seen(
    mountpoint: Path, consistency: str
) -> None:
    """Once the file has been known for some time, its pages are kept."""
    with _file(mountpoint, consistency=consistency) as m:
        now_ns = time.time_ns()
        m.model.set_times("f", now_ns, now_ns)
        end = time.monotonic() + 1.5
        letters = itertools.cycle("bcdefgh")
        while time.monotonic() < end:
            letter = next(letters)
            m.model.put("f", fill(letter))
            m.model.set_times("f", now_ns, now_ns)
            assert _reads(m, fill(letter))
        last = bytes(m.call("inode", "f").data)
        eventually(lambda: not _reads(m, last))


def test_pages_of_a_file_with_times_in_the_future_are_kept_after_some_time(
    mountpoint: Path,
) -> None:
    with _file(mountpoint) as m:
        future_ns = time.time_ns() + 10**9 * 10**6
        m.model.set_times("f", future_ns, future_ns)
        assert _reads(m, fill("a"))
        eventually(lambda: not _reads(m, fill("a")))
        m.model.put("f", fill("b"))
        assert _reads(m, fill("b"))


def test_setting_the_clock_back_voids_all_versions(mountpoint: Path) -> None:
    """A later change may get the times of an earlier one."""
    with _file(mountpoint) as m:
        assert _reads(m, fill("a"))
        assert not _reads(m, fill("a"))
        time.clock_settime_ns(time.CLOCK_REALTIME, time.time_ns() - 3600 * 10**9)
        try:
            assert _reads(m, fill("a"))
            assert not _reads(m, fill("a"))
        finally:
            time.clock_settime_ns(time.CLOCK_REALTIME, time.time_ns() + 3600 * 10**9)
        assert not _reads(m, fill("a"))


# Interleavings


@each_mode
@pytest.mark.parametrize("point", ["before", "after"])
def test_open_shows_a_change_that_the_daemon_made_before_its_getattr(
    mountpoint: Path, consistency: str, point: str
) -> None:
    """A change while the daemon answers the GETATTR of an open is seen by the next open at last."""
    with _file(mountpoint, consistency=consistency, entry_timeout=600.0) as m:
        assert _reads(m, fill("a"))
        m.hold("getattr", point)
        with m.threads(1) as pool:
            reading = pool.submit(read, m / "f")
            m.wait_held()
            m.model.put("f", fill("b"))
            m.release()
            seen = reading.result()
        if point == "before":
            assert seen == fill("b")
        assert seen in (fill("a"), fill("b"))
        assert read(m / "f") == fill("b")


@each_mode
@pytest.mark.parametrize("point", ["before", "after"])
def test_change_during_a_read_is_seen_by_the_next_open(
    mountpoint: Path, consistency: str, point: str
) -> None:
    with _file(mountpoint, consistency=consistency) as m:
        m.hold("read", point)
        with m.threads(1) as pool:
            reading = pool.submit(read, m / "f", BLOCK)
            m.wait_held()
            m.model.put("f", fill("b"))
            m.release()
            assert reading.result() in (fill("a")[:BLOCK], fill("b")[:BLOCK])
        assert read(m / "f") == fill("b")


@each_mode
def test_next_open_drops_pages_of_two_versions(mountpoint: Path, consistency: str) -> None:
    """FUSE keeps the pages when the mtime stays. A later READ brings others of a new version."""
    size = 512 * BLOCK
    with _file(mountpoint, fill("a", size), consistency=consistency) as m:
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.pread(fd, BLOCK, 0) == fill("a", size)[:BLOCK]
        mtime_ns = m.call("inode", "f").mtime_ns
        m.model.put("f", fill("b", size))
        m.model.set_times("f", mtime_ns, m.call("inode", "f").ctime_ns)
        force_stat(m / "f")
        assert os.pread(fd, BLOCK, size - BLOCK) == fill("b", size)[-BLOCK:]
        os.close(fd)
        assert _reads(m, fill("b", size))


@each_mode
@pytest.mark.parametrize("capacity", [{}, {"blocks": 0}], ids=["data cache", "pages"])
def test_pages_read_through_an_old_handle_do_not_count_as_the_new_version(
    mountpoint: Path, consistency: str, capacity: dict[str, int]
) -> None:
    """As in a daemon that goes by paths, when the file is replaced behind the mount."""
    options: dict[str, Any] = {"consistency": consistency, "capacity": capacity}
    with _file(mountpoint, snapshots=True, attr_timeout=2.0, **options) as m:
        old = os.open(m / "f", os.O_RDONLY)
        m.model.put("f", fill("b"))
        force_stat(m / "f")
        assert read(m / "f") == fill("b")
        os.posix_fadvise(old, 0, 0, os.POSIX_FADV_DONTNEED)
        # The next open drops all pages. The old handle fills them again.
        m.model.put("f", fill("c"))
        os.close(os.open(m / "f", os.O_RDONLY))
        assert os.pread(old, SIZE, 0) in (fill("a"), fill("b"), fill("c"))
        _expire(m, 2.5)
        assert read(m / "f") == fill("c")
        os.close(old)


@each_mode
def test_next_open_drops_a_written_page_next_to_one_of_a_newer_version(
    mountpoint: Path, consistency: str
) -> None:
    size = 512 * BLOCK
    with _file(mountpoint, fill("a", size), consistency=consistency) as m:
        fd = os.open(m / "f", os.O_RDWR)
        assert os.pwrite(fd, fill("w", BLOCK), 0) == BLOCK
        mtime_ns = m.call("inode", "f").mtime_ns
        m.model.put("f", fill("b", size))
        m.model.set_times("f", mtime_ns, m.call("inode", "f").ctime_ns)
        force_stat(m / "f")
        assert os.pread(fd, BLOCK, size - BLOCK) == fill("b", size)[-BLOCK:]
        os.close(fd)
        assert _reads(m, fill("b", size))


@each_mode
def test_next_open_drops_a_page_that_an_old_handle_has_read_before_a_new_one(
    mountpoint: Path, consistency: str
) -> None:
    """The new handle then reads another page, of the version that the file has."""
    size = 512 * BLOCK
    options: dict[str, Any] = {"consistency": consistency, "snapshots": True}
    with _file(mountpoint, fill("a", size), **options) as m:
        old = os.open(m / "f", os.O_RDONLY)
        m.model.put("f", fill("b", size))
        force_stat(m / "f")
        new = os.open(m / "f", os.O_RDONLY)
        assert os.pread(old, BLOCK, 0) == fill("a", size)[:BLOCK]
        assert os.pread(new, BLOCK, size - BLOCK) == fill("b", size)[-BLOCK:]
        assert _reads(m, fill("b", size))
        os.close(old)
        os.close(new)


@each_mode
def test_next_open_drops_a_written_page_whose_bytes_the_daemon_has_lost(
    mountpoint: Path, consistency: str
) -> None:
    """The file is again what it was before. Then a READ brings another page."""
    size = 512 * BLOCK
    with _file(mountpoint, fill("a", size), consistency=consistency) as m:
        before = m.call("inode", "f")
        times = before.mtime_ns, before.ctime_ns
        fd = os.open(m / "f", os.O_RDWR)
        assert os.pwrite(fd, fill("w", BLOCK), 0) == BLOCK
        m.model.put("f", fill("a", size))
        m.model.set_times("f", *times)
        assert os.pread(fd, BLOCK, size - BLOCK) == fill("a", size)[-BLOCK:]
        os.close(fd)
        assert _reads(m, fill("a", size))


@pytest.mark.parametrize("store", ["write", "map"])
def test_bytes_that_did_not_reach_the_daemon_are_not_kept(mountpoint: Path, store: str) -> None:
    with _file(mountpoint, lacks=("write",)) as m:
        assert _reads(m, fill("a"))
        fd = os.open(m / "f", os.O_RDWR)
        with contextlib.suppress(OSError):
            if store == "write":
                os.pwrite(fd, b"lost", 0)
            else:
                with mmap.mmap(fd, SIZE) as mapped:
                    mapped[:4] = b"lost"
                    mapped.flush()
        with contextlib.suppress(OSError):
            os.fsync(fd)
        os.close(fd)
        assert read(m / "f") == fill("a")


def test_pages_read_before_the_attach_do_not_count_as_a_later_version(
    mountpoint: Path,
) -> None:
    size = 512 * BLOCK
    with _file(mountpoint, fill("a", size), attach=False) as m:
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.pread(fd, BLOCK, 0) == fill("a", size)[:BLOCK]
        m.attach(capacity={"blocks": 0})
        mtime_ns = m.call("inode", "f").mtime_ns
        m.model.put("f", fill("b", size))
        m.model.set_times("f", mtime_ns, m.call("inode", "f").ctime_ns)
        force_stat(m / "f")
        again = os.open(m / "f", os.O_RDONLY)
        assert os.pread(again, BLOCK, size - BLOCK) == fill("b", size)[-BLOCK:]
        assert _reads(m, fill("b", size)) in (True, False)
        os.close(again)
        os.close(fd)


def test_written_file_is_read_again_once(mountpoint: Path) -> None:
    with _file(mountpoint) as m:
        assert _reads(m, fill("a"))
        with open(m / "f", "r+b", buffering=0) as file:
            file.write(fill("w"))
        assert _reads(m, fill("w"))
        assert not _reads(m, fill("w"))


def test_truncating_open_drops_the_pages(mountpoint: Path) -> None:
    with _file(mountpoint) as m:
        assert _reads(m, fill("a"))
        with open(m / "f", "wb") as file:
            file.write(b"short")
        assert _reads(m, b"short")


class _Random:
    """A file that changes at random behind the mount and by it, between opens that read it."""

    def __init__(self, m: Mount, seed: int) -> None:
        self.m = m
        self.random = random.Random(seed)
        self.held = os.open(m / "f", os.O_RDWR)
        self.steps: list[str] = []

    def step(self) -> None:
        actions = [self.replace, self.replace, self.write, self.store, self.read_held, self.look]
        action = self.random.choice([*actions, self.cut, self.reopen, self.check, self.check])
        self.steps.append(action.__name__)
        action()

    def replace(self) -> None:
        """Change the file behind the mount. Its times may be old, of this second, or come again."""
        before = self.m.call("inode", "f")
        size = before.size if self.random.random() < 0.7 else self.random.randrange(1, 2 * SIZE)
        self.m.model.put("f", fill(self.random.choice("bcdefghijk"), size))
        ctime_ns = self.m.call("inode", "f").ctime_ns
        now_ns = time.time_ns()
        second_ns = now_ns // 10**9 * 10**9
        times = self.random.choice(
            [None, (before.mtime_ns, ctime_ns), (now_ns, now_ns), (second_ns, second_ns)]
        )
        if times:
            self.m.model.set_times("f", *times)

    def write(self) -> None:
        end = os.fstat(self.held).st_size
        os.pwrite(self.held, fill("w", self.random.randrange(1, 9000)), self.random.randrange(end))

    def store(self) -> None:
        """Store a byte by a map, and write the page back before the next change."""
        size = os.fstat(self.held).st_size
        with mmap.mmap(self.held, size) as mapped:
            mapped[self.random.randrange(size)] = self.random.randrange(256)
            mapped.flush()

    def read_held(self) -> None:
        """Fill pages by a file that was opened before. What they show is not checked."""
        os.pread(self.held, self.random.randrange(1, SIZE), self.random.randrange(SIZE))

    def look(self) -> None:
        force_stat(self.m / "f")

    def cut(self) -> None:
        os.truncate(self.m / "f", self.random.randrange(1, 2 * SIZE))

    def reopen(self) -> None:
        os.close(self.held)
        self.held = os.open(self.m / "f", os.O_RDWR)

    def check(self) -> None:
        expected = bytes(self.m.call("inode", "f").data)
        assert read(self.m / "f") == expected, self.steps


@pytest.mark.parametrize(
    ("consistency", "entry_timeout"), [("ttl", 0.0), ("cto", 0.0), ("cto", 600.0)]
)
@pytest.mark.parametrize("seed", range(3))
def test_each_open_shows_what_the_daemon_has(
    mountpoint: Path, consistency: str, entry_timeout: float, seed: int
) -> None:
    """In ttl mode, too, if a LOOKUP brings the size: an older one is believed as on plain FUSE."""
    with _file(mountpoint, consistency=consistency, entry_timeout=entry_timeout) as m:
        changing = _Random(m, seed)
        for _ in range(120):
            changing.step()
        last = bytes(m.call("inode", "f").data)
        eventually(lambda: not _reads(m, last))
        os.close(changing.held)


# The data cache


def test_cached_blocks_of_an_unchanged_file_outlive_their_timeout(mountpoint: Path) -> None:
    """In cto mode each open voids them."""
    with _file(mountpoint, attr_timeout=0.5, capacity={}) as m:
        assert _reads(m, fill("a"))
        _expire(m)
        drop_pages(m / "f")
        with m.answered("read"):
            assert read(m / "f", SIZE) == fill("a")
        m.model.put("f", fill("b"))
        _expire(m)
        drop_pages(m / "f")
        assert _reads(m, fill("b"))


def test_cached_blocks_of_an_older_version_do_not_make_pages_new(mountpoint: Path) -> None:
    """In ttl mode a block answers until its timeout ends, even when the file has changed."""
    with _file(mountpoint, attr_timeout=2.0, capacity={}) as m:
        assert _reads(m, fill("a"))
        m.model.put("f", fill("b"))
        drop_pages(m / "f")
        assert read(m / "f") in (fill("a"), fill("b"))
        _expire(m, 2.5)
        assert read(m / "f") == fill("b")


# Extended attributes and links


def test_extended_attributes_of_an_unchanged_file_outlive_their_timeout(mountpoint: Path) -> None:
    with _file(mountpoint, attr_timeout=0.5) as m:
        m.model.set_xattr("f", b"user.a", b"one")
        for value in (b"one", b"two"):
            m.model.set_xattr("f", b"user.a", value)
            os.stat(m / "f")
            assert os.getxattr(m / "f", "user.a") == value
            assert os.listxattr(m / "f") == ["user.a"]
            with pytest.raises(OSError, match="No data"):
                os.getxattr(m / "f", "user.b")
            _expire(m)
            m.log()
            assert os.getxattr(m / "f", "user.a") == value
            assert os.listxattr(m / "f") == ["user.a"]
            with pytest.raises(OSError, match="No data"):
                os.getxattr(m / "f", "user.b")
            assert not {"getxattr", "listxattr"} & set(m.asked())
            _expire(m)


def test_link_of_an_unchanged_inode_outlives_its_timeout(mountpoint: Path) -> None:
    with _file(mountpoint, attr_timeout=0.5) as m:
        m.model.symlink("link", b"f")
        os.lstat(m / "link")
        assert os.readlink(m / "link") == "f"
        _expire(m)
        m.log()
        assert os.readlink(m / "link") == "f"
        assert "readlink" not in m.asked()


def test_extended_attribute_with_racy_times_is_asked_for_again(mountpoint: Path) -> None:
    with _file(mountpoint, attr_timeout=0.2) as m:
        now_ns = time.time_ns() // 10**9 * 10**9
        for value in (b"one", b"two"):
            m.model.set_xattr("f", b"user.a", value)
            m.model.set_times("f", now_ns, now_ns)
            os.stat(m / "f")
            assert os.getxattr(m / "f", "user.a") == value
            _expire(m)
