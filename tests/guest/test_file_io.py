# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test read(2) and write(2) of mapped files, which bypass FUSE's page cache and agree with it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import random
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efuse import stats
from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import (
    Call,
    Mount,
    eventually,
    fails,
    force_stat,
    mounted,
    running,
)
from tests.guest.support.file_data import BLOCK, fill, read, write
from tests.guest.support.file_pages import LONG, libc
from tests.guest.support.forced import Forced, forced
from tests.guest.support.manual_daemon import until
from tests.guest.support.shell import run
from tests.guest.support.wire import FOPEN_NOFLUSH


def cached_pages(path: str | Path) -> int:
    """Return the number of a file's pages in its page cache."""
    return int(run("fincore", "-n", "-b", "-o", "PAGES", path).stdout)


SIZE = 10 * BLOCK
DATA = fill("b", SIZE)


@pytest.fixture
def m(mountpoint: Path, lower: Path) -> Iterator[Forced]:
    """Yield a pass-through with the file ``f``, which the daemon maps when it is opened."""
    (lower / "f").write_bytes(DATA)
    with forced(lower, mountpoint, "direct", consistency="exclusive") as one:
        yield one


class Thread(threading.Thread):
    """A thread that runs a function again and again until it is stopped."""

    def __init__(self, function: Callable[[int], None]) -> None:
        super().__init__()
        self.rounds = 0
        self._function = function
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopped.is_set():
            self._function(self.rounds + 1)
            self.rounds += 1

    def stop(self) -> int:
        """Stop the thread, and return the number of rounds, at least one."""
        self._stopped.set()
        self.join()
        assert self.rounds
        return self.rounds


def test_read_and_write_leave_no_pages_in_fuse(m: Forced, lower: Path) -> None:
    assert read(m / "f") == DATA
    assert write(m / "f", fill("w")[:BLOCK], BLOCK) == BLOCK
    assert read(m / "f", BLOCK, BLOCK) == fill("w")[:BLOCK]
    # A buffer that is only partly resident is filled in two steps.
    assert m.answered()["direct"] >= 3
    assert cached_pages(m / "f") == 0
    assert cached_pages(lower / "f") > 0
    assert m.answered()["daemon"] == 0


def test_write_beyond_the_end_grows_the_file(m: Forced, lower: Path) -> None:
    assert write(m / "f", b"end", SIZE + 5) == 3
    assert os.stat(m / "f").st_size == SIZE + 8
    assert (lower / "f").read_bytes() == DATA + bytes(5) + b"end"


def test_map_shows_what_write_has_written(m: Forced) -> None:
    with open(m / "f", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert view[:] == DATA
        assert cached_pages(m / "f") == SIZE // BLOCK
        before = m.answered()["direct"]
        assert write(m / "f", b"new", BLOCK - 1) == 3
        assert m.answered()["direct"] == before + 1
        assert view[:] == DATA[: BLOCK - 1] + b"new" + DATA[BLOCK + 2 :]


def test_map_made_before_shows_bytes_behind_its_end_that_write_adds(m: Forced) -> None:
    fd, reader = os.open(m / "f", os.O_RDWR), os.open(m / "f", os.O_RDONLY)
    address = libc.mmap(None, SIZE + BLOCK, mmap.PROT_READ, mmap.MAP_SHARED, reader, 0)
    before = m.answered()["direct"]
    assert os.pwrite(fd, DATA[:BLOCK], SIZE) == BLOCK
    assert m.answered()["direct"] == before + 1
    # In a process of its own, because it may be killed by SIGBUS.
    assert Call(ctypes.string_at, address + SIZE, BLOCK).result() == DATA[:BLOCK]
    libc.munmap(address, SIZE + BLOCK)
    os.close(reader)
    os.close(fd)


def test_read_and_write_respect_bytes_stored_by_a_map(m: Forced, lower: Path) -> None:
    with open(m / "f", "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[:4] = b"mmap"
        assert read(m / "f", 8) == b"mmap" + DATA[4:8]
        assert write(m / "f", b"file", 4) == 4
        assert view[:8] == b"mmapfile"
        view.flush()
    assert (lower / "f").read_bytes() == b"mmapfile" + DATA[8:]


def test_stores_and_writes_to_the_same_pages_are_all_kept(m: Forced, lower: Path) -> None:
    """A thread stores to each page's first word by maps. The test writes the second words."""
    pages, rounds = 4, 150
    fd = os.open(m / "f", os.O_RDWR)

    def store(number: int) -> None:
        with mmap.mmap(fd, pages * BLOCK) as view:
            for at in range(0, pages * BLOCK, BLOCK):
                view[at : at + 8] = number.to_bytes(8, "little")

    storing = Thread(store)
    for number in range(1, rounds + 1):
        word = number.to_bytes(8, "little")
        for at in range(8, pages * BLOCK, BLOCK):
            assert os.pwrite(fd, word, at) == 8
            assert os.pread(fd, 8, at) == word
    stored = storing.stop()
    os.fsync(fd)
    os.close(fd)
    data = (lower / "f").read_bytes()
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, pages * BLOCK, 8)]
    for page in range(pages):
        assert words[page * BLOCK // 8 :][:2] == [stored, rounds]


@contextlib.contextmanager
def written_through(mountpoint: Path, path: str) -> Iterator[tuple[Mount, int]]:
    """Yield a mount whose file ``f`` is mapped to *path*, and a descriptor of ``f``.

    The daemon also writes to *path*.
    """
    with mounted(
        mountpoint,
        consistency="exclusive",
        path="direct",
        write_through=path,
        # Without this flag, closing a file would wait for the inode's lock.
        open_flags=FOPEN_NOFLUSH,
    ) as m:
        make(m, "f", DATA)
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        yield m, fd
        os.close(fd)


def _store(fd: int, offset: int, data: bytes) -> None:
    """Store to a memory map and unmap it, which writes it back; newer kernels wait for that."""
    with mmap.mmap(fd, 0) as view:
        view[offset : offset + len(data)] = data


def test_write_waits_for_pages_that_became_dirty_before_it_got_the_lock(
    mountpoint: Path, lower: Path
) -> None:
    """All pages were clean when the write began. It checks again under the inode's lock."""
    with written_through(mountpoint, path := backing(lower, DATA)) as (m, fd):
        m.hold("setattr", "before")
        change = Call(os.chmod, m / "f", 0o600)  # It holds the inode's lock until it is answered.
        m.wait_held()
        writing = Call(os.pwrite, fd, b"from pwrite", 11)
        eventually(lambda: writing.within()[:1] == ["efuse_file_write"])
        m.hold("write", "before")
        m.connection.forced_path = "daemon"
        storing = Call(_store, fd, 0, b"from a map")
        m.wait_held(2)
        m.connection.forced_path = "direct"
        m.release("setattr")
        change.result()
        eventually(lambda: writing.done() or "fuse_cache_write_iter" in writing.within())
        m.release("write")
        storing.result()
        assert writing.result() == 11
    assert Path(path).read_bytes() == b"from a map" + DATA[10:11] + b"from pwrite" + DATA[22:]


def test_store_waits_for_a_write_that_waits_for_another_page(mountpoint: Path, lower: Path) -> None:
    """All pages were clean when the write checked. Until it has dropped them, stores wait."""
    with written_through(mountpoint, path := backing(lower, DATA)) as (m, fd):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        m.connection.forced_path = "daemon"
        assert os.pread(fd, 1, BLOCK) == DATA[BLOCK : BLOCK + 1]
        assert cached_pages(m / "f") == 1

        # The previous page is locked until its READ is answered.
        m.hold("read", "before")
        reading = Call(os.pread, fd, 1, 0)
        m.wait_held()
        m.connection.forced_path = "direct"
        writing = Call(os.pwrite, fd, b"from pwrite", BLOCK - 5)
        eventually(lambda: "efuse_file_try_write" in writing.within())
        storing = Call(_store, fd, BLOCK + 6, b"from a map")
        eventually(lambda: "efuse_page_mkwrite" in storing.within())
        m.release("read")
        assert reading.result() == DATA[:1]  # It may wait for the write.
        storing.result()
        assert writing.result() == 11
    wanted = bytearray(DATA)
    wanted[BLOCK - 5 : BLOCK + 16] = b"from pwritefrom a map"
    assert Path(path).read_bytes() == wanted


def test_read_updates_the_access_time(m: Forced, lower: Path) -> None:
    os.utime(m / "f", (1000, 2000))
    fd = os.open(m / "f", os.O_RDONLY)
    for _ in range(2):
        before = stats.read(m.connection, timing=False).opcodes["getattr"].hits
        force_stat(m / "f")
    # The kernel has the attributes, so it has to notice that they are void.
    assert stats.read(m.connection, timing=False).opcodes["getattr"].hits == before + 1
    assert os.stat(m / "f").st_atime == 1000
    assert os.pread(fd, 10, 0) == DATA[:10]
    accessed = os.stat(lower / "f").st_atime_ns
    assert accessed > 2000 * 10**9
    assert os.stat(m / "f").st_atime_ns == accessed
    os.close(fd)
    assert m.answered()["direct"] > 0


def test_concurrent_appends_do_not_overlap(m: Forced, lower: Path) -> None:
    def append(letter: bytes) -> None:
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        for _ in range(50):
            assert os.write(fd, letter * 300) == 300
        os.close(fd)

    calls = [Call(append, letter) for letter in (b"1", b"2", b"3")]
    for call in calls:
        call.result()
    data = (lower / "f").read_bytes()
    assert data[:SIZE] == DATA
    records = [data[at : at + 300] for at in range(SIZE, len(data), 300)]
    assert sorted(records) == sorted(letter * 300 for letter in (b"1", b"2", b"3") * 50)
    assert os.stat(m / "f").st_size == len(data)
    assert m.answered()["direct"] >= 150


def test_write_beyond_rlimit_fsize_is_cut_or_fails(m: Forced, lower: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE + 2, hard))
    try:
        assert write(m / "f", b"four", SIZE) == 2
        fails(errno.EFBIG, write, m / "f", b"four", SIZE + 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert (lower / "f").read_bytes() == DATA + b"fo"


# The caller's buffer


@pytest.mark.parametrize("flags", [0, os.O_DIRECT])
def test_buffer_that_ends_at_unmapped_memory_moves_what_fits_or_fails(
    m: Forced, lower: Path, flags: int
) -> None:
    """The bytes that fit are moved, or none are. No other byte changes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.pread.restype = libc.pwrite.restype = ctypes.c_ssize_t
    words = (ctypes.c_size_t(0), ctypes.c_size_t(3 * BLOCK), mmap.PROT_READ | mmap.PROT_WRITE)
    start = libc.mmap(*words, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
    assert not libc.munmap(ctypes.c_size_t(start + 2 * BLOCK), ctypes.c_size_t(BLOCK))
    fd = os.open(m / "f", os.O_RDWR | flags)
    size, none = ctypes.c_size_t(3 * BLOCK), ctypes.c_long(0)
    done = libc.pread(fd, ctypes.c_size_t(start), size, none)
    assert done == 2 * BLOCK or (done == -1 and ctypes.get_errno() == errno.EFAULT)
    assert ctypes.string_at(start, max(done, 0)) == DATA[: max(done, 0)]
    ctypes.memset(start, ord("w"), 2 * BLOCK)
    done = libc.pwrite(fd, ctypes.c_size_t(start), size, none)
    assert done == 2 * BLOCK or (done == -1 and ctypes.get_errno() == errno.EFAULT)
    written = max(done, 0)
    assert (lower / "f").read_bytes() == b"w" * written + DATA[written:]
    assert libc.pread(fd, ctypes.c_size_t(start + 2 * BLOCK), size, none) == -1
    assert ctypes.get_errno() == errno.EFAULT
    os.close(fd)


@pytest.mark.parametrize("at", [8, BLOCK + 8])
def test_write_from_a_map_of_the_same_file_ends(m: Forced, lower: Path, at: int) -> None:
    """The call ends, and no other bytes change. Where the ranges overlap, any bytes may appear."""
    with open(m / "f", "r+b") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        part = memoryview(view)[:BLOCK]
        assert os.pwrite(file.fileno(), part, at) == BLOCK
        part.release()
    data = (lower / "f").read_bytes()
    assert data[:at] + data[at + BLOCK :] == DATA[:at] + DATA[at + BLOCK :]
    if at > BLOCK:
        assert data[at : at + BLOCK] == DATA[:BLOCK]


def test_read_into_a_buffer_that_the_daemon_must_fill_ends(mountpoint: Path, lower: Path) -> None:
    """The daemon has one thread, which waits for I/O in an ioctl, and then fills page faults."""
    path = backing(lower, DATA)
    with mounted(mountpoint, path="direct") as m:
        for name in ("f", "g"):
            make(m, name, fill(name, SIZE))
        whole(m, path)
        with open(m / "f", "rb") as file, open(m / "g", "rb") as buffer:

            def read_into_other_file(_: int) -> None:
                os.posix_fadvise(buffer.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                with mmap.mmap(buffer.fileno(), 0, flags=mmap.MAP_PRIVATE) as view:
                    assert os.preadv(file.fileno(), [view], 0) == SIZE
                    assert view[:] in (DATA, fill("f", SIZE))

            reading = Thread(read_into_other_file)
            for _ in range(60):
                m.call("unmap_extents", "f")
                whole(m, path)
            reading.stop()


def test_read_into_untouched_buffers_returns_all_bytes(m: Forced) -> None:
    """The buffers have several parts, with pages that were never touched."""
    rng = random.Random(20261122)
    with open(m / "f", "rb") as file:
        for _ in range(50):
            parts = [mmap.mmap(-1, rng.randrange(1, 3 * BLOCK)) for _ in range(4)]
            for part in parts:
                part[rng.randrange(len(part))] = 1
            at = rng.randrange(SIZE)
            done = os.preadv(file.fileno(), parts, at)
            wanted = DATA[at : at + sum(map(len, parts))]
            assert done == len(wanted)
            assert b"".join(part[:] for part in parts)[:done] == wanted
            for part in parts:
                part.close()
    assert m.answered()["daemon"] == 0


# Programs and appends


_REFUSING = """
#include "efuse.bpf.h"

int read(struct efuse_req *req)
{
    return efuse_req_offset(req) == 8 ? -EPERM : EFUSE_PASS;
}

int write(struct efuse_req *req)
{
    return efuse_req_offset(req) == 8 ? -EROFS : EFUSE_PASS;
}
"""


def test_handler_refuses_a_read_or_write_with_its_errno(mountpoint: Path, lower: Path) -> None:
    with mounted(mountpoint, attach=False) as m:
        m.attach(handlers={"read": _REFUSING, "write": _REFUSING})
        make(m, "f", fill("d"))
        whole(m, backing(lower, DATA), write=True)
        fails(errno.EPERM, read, m / "f", 10, 8)
        fails(errno.EROFS, write, m / "f", b"no", 8)
        assert read(m / "f", 10) == DATA[:10]
        assert write(m / "f", b"yes") == 3
    assert (lower / "backing").read_bytes() == b"yes" + DATA[3:]


def test_append_goes_to_the_end_after_a_write_behind_the_mount(
    mountpoint: Path, lower: Path
) -> None:
    (lower / "f").write_bytes(DATA)
    with forced(lower, mountpoint, "direct", consistency="ttl", attr_timeout=0) as m:
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        with open(lower / "f", "ab") as other:
            other.write(b"other")
        assert os.write(fd, b"mine") == 4
        os.close(fd)
    assert (lower / "f").read_bytes() == DATA + b"othermine"


def test_direct_append_goes_to_the_end_of_dirty_pages(mountpoint: Path, lower: Path) -> None:
    """In a write-back mount, the backing file may end before the file does."""
    (lower / "f").write_bytes(DATA)
    options = {"consistency": "exclusive", "writeback": True}
    with forced(lower, mountpoint, "direct", **options) as m, mmap.mmap(-1, BLOCK) as buffer:
        buffer[:] = fill("a", BLOCK)
        fd = os.open(m / "f", os.O_RDWR)
        direct = os.open(m / "f", os.O_WRONLY | os.O_APPEND | os.O_DIRECT)
        view = mmap.mmap(fd, SIZE)  # With a map, the next write(2) takes FUSE's own way.
        assert os.pwrite(fd, fill("w", BLOCK), SIZE) == BLOCK
        assert (lower / "f").stat().st_size == SIZE
        assert os.write(direct, buffer) == BLOCK
        os.fsync(fd)
        view.close()
        os.close(direct)
        os.close(fd)
        assert (lower / "f").read_bytes() == DATA + fill("w", BLOCK) + fill("a", BLOCK)


def _append_view(fd: int, path: str) -> int:
    """Append the bytes of a file by one write(2), from a map with only two pages in memory."""
    source = os.open(path, os.O_RDONLY)
    with mmap.mmap(source, 0, prot=mmap.PROT_READ) as view:
        view.madvise(mmap.MADV_RANDOM)
        assert view[:1] == view[BLOCK : BLOCK + 1] == b"a"
        return os.write(fd, view)


def test_append_does_not_come_between_the_parts_of_another_append(
    mountpoint: Path, lower: Path
) -> None:
    """A path takes the first part, and only the daemon would take the rest.

    The second append begins between the two parts. With O_DSYNC, the first one also waits for an
    FSYNC there.
    """
    first, second = fill("a", 4 * BLOCK), fill("s", 100)
    path = backing(lower, fill("b", BLOCK))
    with mounted(mountpoint, consistency="exclusive", path="direct", **LONG) as m:
        make(m, "f", fill("b", BLOCK))
        make(m, "source", first)
        whole(m, path, write=True)
        source = os.open(m / "source", os.O_RDONLY)
        os.posix_fadvise(source, 0, 0, os.POSIX_FADV_RANDOM)
        assert os.pread(source, 2 * BLOCK, 0) == first[: 2 * BLOCK]
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND | os.O_DSYNC)
        other = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        hits = m.count("write", "hits")
        m.hold("read", "before")
        with running(_append_view, fd, m / "source") as writing:
            m.wait_held()
            appended = Path(path).read_bytes()
            assert appended == fill("b", BLOCK) + first[: 2 * BLOCK]
            m.model.put("f", appended)
            m.connection.forced_path = "daemon"
            with running(os.write, other, second) as following:
                until(lambda: m.keeps_waiting(following, 1))
                m.hold("fsync", "before")
                m.release("read")
                m.wait_held()
                m.release()
                length = writing.result()
                assert following.result() == len(second)
        for each in (source, fd, other):
            os.close(each)
        assert bytes(m.call("inode", "f").data) == fill("b", BLOCK) + first[:length] + second
        assert length == 2 * BLOCK
        assert m.count("write", "hits") == hits + 1


def test_append_goes_to_the_end_that_the_daemon_announced(mountpoint: Path, lower: Path) -> None:
    """This holds in exclusive mode, too, where the daemon announces changes by other writers."""
    path = Path(backing(lower, fill("b", 100)))
    with mounted(mountpoint, consistency="exclusive", entry_timeout=60.0, attr_timeout=60.0) as one:
        make(one, "f", fill("b", 100))
        whole(one, str(path), write=True)
        fd = os.open(one / "f", os.O_WRONLY | os.O_APPEND)
        hits = one.count("write", "hits")
        os.write(fd, b"first ")
        with path.open("ab") as file:
            file.write(b"somebody else's ")
        one.model.put("f", path.read_bytes())
        one.call("inval_inode", "f")
        os.write(fd, b"second ")
        # This change is not announced, so the kernel gets the end from the lower file system.
        with path.open("ab") as file:
            file.write(b"untold ")
        os.write(fd, b"third")
        os.close(fd)
        assert path.read_bytes()[100:] == b"first somebody else's second untold third"
        assert one.count("write", "hits") == hits + 3
        one.model.put("f", path.read_bytes())
        assert read(one / "f") == path.read_bytes()
        assert os.stat(one / "f").st_size == path.stat().st_size


def test_read_of_a_small_file_touches_no_more_of_a_large_buffer(m: Forced, lower: Path) -> None:
    """The part of an untouched buffer that the file does not fill stays untouched."""
    (lower / "small").write_bytes(DATA)

    def resident(size: int) -> tuple[bytes, int]:
        fd = os.open(m / "small", os.O_RDONLY)
        with mmap.mmap(-1, size) as buffer:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            got = os.preadv(fd, [buffer], 0)
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return buffer[:got], after - before

    data, kib = Call(resident, 1 << 28).result()
    assert data == DATA
    assert kib < 8 << 10
    m.show_that_it_ran(1)


def test_read_of_a_large_file_fills_an_untouched_buffer(m: Forced, lower: Path) -> None:
    data = fill("b", (5 << 20) + 17)
    (lower / "large").write_bytes(data)
    fd = os.open(m / "large", os.O_RDONLY)
    with mmap.mmap(-1, 8 << 20) as buffer:
        assert os.preadv(fd, [buffer], 0) == len(data)
        assert buffer[: len(data)] == data
    os.close(fd)
    m.show_that_it_ran(1)


def test_read_of_a_file_that_is_mapped_for_writing_comes_from_the_pages(
    m: Forced, lower: Path
) -> None:
    """A read sees a store of another thread immediately, because the pages have it first.

    Two things may share a bucket of epochs, and then a change of one voids the other. So it is
    enough if one of several files shows this.
    """
    assert any([_reads_of_stores_send_no_requests(m, lower, name) for name in "abcde"])


def _reads_of_stores_send_no_requests(m: Forced, lower: Path, name: str) -> bool:
    (lower / name).write_bytes(DATA)
    with open(m / name, "r+b", buffering=0) as file, mmap.mmap(file.fileno(), SIZE) as view:
        for at in range(0, SIZE, BLOCK):
            view[at : at + 8] = b"stored!!"
        brought = m.answered()
        for at in range(0, SIZE, BLOCK):
            assert os.pread(file.fileno(), 8, at) == b"stored!!"
        assert brought["direct"]
        return m.answered() == brought


def test_rlimit_fsize_applies_to_positions_in_the_file_not_the_backing_file(
    mountpoint: Path, lower: Path
) -> None:
    """In the backing file, the bytes are far behind the limit."""
    path = Path(backing(lower, b""))
    far = 1 << 30
    os.truncate(path, far + SIZE)

    def limited() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        return write(one / "f", b"written", 5)

    with mounted(mountpoint) as one:
        make(one, "f", fill("d", SIZE))
        extent = {"length": SIZE, "backing_offset": far, "write": True}
        one.call("map_extent", "f", str(path), os.O_RDWR, **extent)
        declined = one.count("write", "declined")
        assert Call(limited).result() == 7
        assert one.count("write", "declined") > declined
        assert bytes(one.call("inode", "f").data[5:12]) == b"written"
        with one.answered("write"):
            assert write(one / "f", b"no limit", 5, os.O_DIRECT) == 8
        with path.open("rb") as file:
            assert os.pread(file.fileno(), 8, far + 5) == b"no limit"


@pytest.mark.parametrize("consistency", ["ttl", "cto"])
def test_reads_return_nothing_older_than_earlier_reads(
    mountpoint: Path, lower: Path, consistency: str
) -> None:
    """The paths alternate while the backing file is written, at times fast and at times slowly."""
    path = Path(backing(lower, b"%08d" % 0 * (SIZE // 8)))
    rng = random.Random(20261125)
    with mounted(
        mountpoint, consistency=consistency, entry_timeout=600.0, attr_timeout=600.0
    ) as one:
        make(one, "f", fill("d", SIZE))
        whole(one, str(path))
        fd = os.open(one / "f", os.O_RDONLY)
        with (
            path.open("r+b", buffering=0) as below,
            mmap.mmap(below.fileno(), SIZE) as stored,
            mmap.mmap(fd, SIZE, prot=mmap.PROT_READ) as view,
        ):
            version, shown = 0, [0] * (SIZE // BLOCK)

            def look(at: int, got: bytes, how: str) -> None:
                assert int(got) >= shown[at], f"{how} of block {at}: {got!r} after {shown[at]}"
                shown[at] = int(got)

            for _ in range(600):
                at = rng.randrange(SIZE // BLOCK)
                if rng.random() < 0.2:
                    version += 1
                    os.pwrite(below.fileno(), b"%08d" % version, at * BLOCK)
                elif rng.random() < 0.05:
                    version += 1
                    stored[at * BLOCK : at * BLOCK + 8] = b"%08d" % version
                elif rng.random() < 0.1:
                    look(at, view[at * BLOCK : at * BLOCK + 8], "a map")
                else:
                    one.connection.forced_path = how = rng.choice(("cache", "direct", "auto"))
                    size = rng.choice((8, BLOCK))
                    look(at, os.pread(fd, size, at * BLOCK)[:8], how)
        os.close(fd)
        for used in ("cache", "direct"):
            assert one.connection.counts(f"paths/{used}")["requests"] > 50
