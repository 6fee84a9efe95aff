# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test direct READ and WRITE of backing files: bytes that are reached, and bytes that must not be.

The daemon's bytes are ``d0000000d0000001...``, and those of backing files begin with other letters.
So each read shows its source.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from efuse.errors import MountError
from efuse.fs.extents import Extent, map_extent
from efuse.fs.mountpoint import MountOptions, mount_efuse
from tests.guest.support.backing_files import backing, make, map_error, whole
from tests.guest.support.daemons import Call, Mount, eventually, fails, mounted
from tests.guest.support.file_data import BLOCK, SIZE, fill, read, read_direct, write
from tests.guest.support.file_pages import LONG
from tests.guest.support.shell import load_file_system, run
from tests.guest.support.small_disk import shut_down, small
from tests.guest.support.wire import FOPEN_KEEP_CACHE

DEADLINE_S = 60
_IN_MODIFY = 2


# Reads of mapped files


def test_read_of_a_mapped_file_returns_the_backing_files_bytes(
    mountpoint: Path, lower: Path
) -> None:
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        whole(m, backing(lower, fill("b")))
        with m.answered("read"):
            assert read(m / "f") == fill("b")


def test_read_of_any_offset_and_size_of_a_mapped_file_needs_no_daemon(
    mountpoint: Path, lower: Path
) -> None:
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        whole(m, backing(lower, fill("b")))
        for offset in (0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 7, SIZE - 1, SIZE):
            for size in (1, 512, BLOCK, 3 * BLOCK, 1 << 20):
                expected = fill("b")[offset : offset + size]
                assert read(m / "f", size, offset) == expected
                assert read_direct(m / "f", size, offset) == expected
        assert "read" not in m.asked()


def test_read_ahead_is_answered_without_the_daemon(mountpoint: Path, lower: Path) -> None:
    data = fill("b", 1 << 21)
    with mounted(mountpoint) as m:
        make(m, "f", fill("d", len(data)))
        whole(m, backing(lower, data))
        hits = m.count("read", "hits")
        with open(m / "f", "rb", buffering=0) as file:
            assert b"".join(iter(lambda: file.read(5000), b"")) == data
        assert m.count("read", "hits") - hits >= len(data) >> 17
        assert "read" not in m.asked()


def test_mmap_and_sendfile_of_a_mapped_file_need_no_daemon(mountpoint: Path, lower: Path) -> None:
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        whole(m, backing(lower, fill("b")))
        with open(m / "f", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert view[:] == fill("b")
            assert view.size() == SIZE
        out = lower / "out"
        with open(m / "f", "rb") as file, out.open("wb") as to:
            while os.sendfile(to.fileno(), file.fileno(), None, 1 << 20):
                pass
        assert out.read_bytes() == fill("b")
        assert "read" not in m.asked()


def test_map_beyond_the_end_of_the_backing_file_shows_zeros(mountpoint: Path, lower: Path) -> None:
    """The daemon reports a larger size than the backing file has: as if the daemon had read it."""
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        whole(m, backing(lower, fill("b")[:100]))
        with open(m / "f", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert view[:100] == fill("b")[:100]
            assert view[100:BLOCK] == bytes(BLOCK - 100)
        assert read_direct(m / "f", BLOCK) == fill("b")[:100]


def test_hole_of_the_backing_file_reads_as_zeros(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, b"")
    os.truncate(path, SIZE)
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        whole(m, path)
        assert read(m / "f") == bytes(SIZE)
        assert "read" not in m.asked()


def test_backing_file_opened_with_o_direct_is_read_at_any_alignment(
    mountpoint: Path, lower: Path
) -> None:
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        m.call("map_extent", "f", backing(lower, fill("b")), os.O_RDONLY | os.O_DIRECT)
        assert read(m / "f") == fill("b")
        assert read_direct(m / "f", BLOCK, BLOCK) == fill("b")[BLOCK : 2 * BLOCK]
        # This is not aligned to the device's blocks.
        assert read_direct(m / "f", 77, 5) == fill("b")[5:82]
        assert "read" not in m.asked()


# Ranges without an extent


def test_direct_read_and_write_keep_the_credentials_of_the_caller(
    mountpoint: Path, lower: Path
) -> None:
    """The I/O is done with the daemon's. Afterwards the caller has its own again."""
    path = backing(lower, fill("b"))
    with mounted(mountpoint, path="direct") as m:
        make(m, "f", fill("d"))
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR)

        def act(io: Callable[[], object]) -> bool:
            io()
            fails(errno.EACCES, os.open, "/etc/shadow", os.O_RDONLY)
            return os.geteuid() == 65534

        def both() -> bool:
            reads = act(lambda: os.pread(fd, BLOCK, 0))
            return reads and act(lambda: os.pwrite(fd, fill("n")[:BLOCK], BLOCK))

        m.log()
        assert Call(both, uid=65534, gid=65534).result()
        assert not {"read", "write"} & {*m.asked()}
        os.close(fd)
        assert Path(path).read_bytes()[BLOCK : 2 * BLOCK] == fill("n")[:BLOCK]


def test_read_of_an_unmapped_range_goes_to_the_daemon(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b"))
    with mounted(mountpoint, path="direct", **LONG) as m:
        make(m, "f", fill("d"))
        make(m, "g", fill("d"))
        span = {"offset": 2 * BLOCK, "length": BLOCK, "backing_offset": 5 * BLOCK}
        m.call("map_extent", "f", path, os.O_RDONLY, **span)
        m.log()
        assert read_direct(m / "f", BLOCK, 2 * BLOCK) == fill("b")[5 * BLOCK : 6 * BLOCK]
        assert "read" not in m.asked()
        for offset, size in [
            (2 * BLOCK - 1, BLOCK),
            (2 * BLOCK, BLOCK + 1),
            (2 * BLOCK + 1, BLOCK),
            (0, BLOCK),
            (3 * BLOCK, BLOCK),
            (0, SIZE),
        ]:
            with m.passed("read", "unmapped"):
                assert read_direct(m / "f", size, offset) == fill("d")[offset : offset + size]
        with m.passed("read"):
            assert read(m / "g") == fill("d")


def test_random_extents_serve_the_bytes_that_a_model_predicts(
    mountpoint: Path, lower: Path
) -> None:
    """Extents are mapped, cut and unmapped at random, and each byte comes from its owner."""
    rng = random.Random(20261121)
    letters = "abc"
    texts = {x: fill(x, 3 * SIZE) for x in (*letters, "d")}
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        files = {x: backing(lower, texts[x], x) for x in letters}
        owner: list[tuple[str, int]] = [("d", n) for n in range(SIZE)]
        served = 0
        fd = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, BLOCK)
        for _ in range(100):
            start = rng.randrange(SIZE - 1)
            length = rng.randint(1, min(SIZE - start, rng.choice([10, 5000, SIZE])))
            where = rng.randrange(2 * SIZE)
            letter = rng.choice(letters)
            if rng.random() < 0.2:
                m.call("unmap_extents", "f", offset=start, length=length)
                owner[start : start + length] = [("d", start + n) for n in range(length)]
            else:
                span = {"offset": start, "length": length, "backing_offset": where}
                m.call("map_extent", "f", files[letter], os.O_RDONLY, **span)
                owner[start : start + length] = [(letter, where + n) for n in range(length)]
            for _ in range(4):
                at = rng.randrange(SIZE)
                size = min(rng.choice([1, 100, BLOCK]), SIZE - at)
                parts = owner[at : at + size]
                mine = all(x != "d" for x, _ in parts)
                if not mine:
                    parts = [("d", at + n) for n in range(size)]
                assert os.preadv(fd, [memoryview(buffer)[:size]], at) == size
                assert buffer[:size] == bytes(texts[x][n] for x, n in parts)
                assert ("read" in m.asked()) != mine
                served += mine
        os.close(fd)
        assert served > 50


def test_map_of_a_range_that_overflows_fails(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b"))
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        for offset, length, there in [
            ((1 << 63) - 1, 1, 0),
            ((1 << 63) - 10, 11, 0),
            (0, 10, (1 << 63) - 10),
        ]:
            span = {"offset": offset, "length": length, "backing_offset": there}
            assert map_error(m, "f", path, os.O_RDONLY, **span) == errno.EOVERFLOW


def test_map_with_invalid_arguments_fails(mountpoint: Path, lower: Path) -> None:
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        path = backing(lower, fill("b"))
        nodeid = m.call("nodeid", "f")
        good = (nodeid, 0, BLOCK, 0, 0)
        assert m.call("raw_map", good, 0, path, os.O_RDONLY) == 0
        for fields, flags, how, number in [
            (good, 16, os.O_RDONLY, errno.EINVAL),
            (good, 1 << 31, os.O_RDONLY, errno.EINVAL),
            (good, 2, os.O_RDONLY, errno.EINVAL),
            (good, 1 | 4, os.O_RDWR, errno.EINVAL),
            (good, 1, os.O_RDONLY, errno.EBADF),
            (good, 0, os.O_WRONLY, errno.EBADF),
            (good, 0, os.O_PATH, errno.EBADF),
            (good, 1, os.O_RDWR | os.O_APPEND, errno.EINVAL),
            ((0, 0, BLOCK, 0, 0), 0, os.O_RDONLY, errno.EINVAL),
            ((nodeid, 0, 0, 0, 0), 0, os.O_RDONLY, errno.EINVAL),
            ((nodeid, 1 << 63, 1, 0, 0), 0, os.O_RDONLY, errno.EOVERFLOW),
            ((nodeid, 0, 1 << 63, 0, 0), 0, os.O_RDONLY, errno.EOVERFLOW),
            ((nodeid, (1 << 64) - 1, (1 << 64) - 1, 0, 0), 0, os.O_RDONLY, errno.EOVERFLOW),
            ((nodeid, 0, 1, (1 << 64) - 1, 0), 0, os.O_RDONLY, errno.EOVERFLOW),
        ]:
            assert m.call("raw_map", fields, flags, path, how) == number, (fields, flags, how)
        assert m.call("raw_map", good, 0, str(lower), os.O_RDONLY) == errno.EISDIR
        assert m.call("raw_map", good, 0, "/dev/zero", os.O_RDONLY) == errno.EINVAL


def test_map_without_privilege_fails(mountpoint: Path, lower: Path) -> None:
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        path = backing(lower, fill("b"))
        good = (m.call("nodeid", "f"), 0, BLOCK, 0, 0)
        assert m.call("raw_map", good, 0, path, os.O_RDONLY, 1000) == errno.EPERM


def test_map_by_a_device_without_a_mount_fails(lower: Path) -> None:
    raw = struct.pack("=QQQQQiI", 1, 0, 4096, 0, 0, 0, 0)
    fd = os.open("/dev/efuse", os.O_RDWR)
    try:
        fails(errno.ENOTCONN, fcntl.ioctl, fd, 1 << 30 | len(raw) << 16 | 229 << 8 | 64, raw)
        fails(errno.ENOTTY, fcntl.ioctl, fd, 1 << 30 | len(raw) << 16 | 229 << 8 | 90, raw)
    finally:
        os.close(fd)


def test_only_a_mount_of_greater_stack_depth_is_backed_by_another(
    mountpoint: Path, lower: Path
) -> None:
    """The depth is fixed at mount time, so that no two mounts can back each other."""
    first, second = mountpoint / "1", mountpoint / "2"
    first.mkdir()
    second.mkdir()
    with (
        mounted(first, path="direct", stack_depth=2) as deep,
        mounted(second, path="direct") as flat,
    ):
        make(deep, "f", fill("d"))
        make(flat, "f", fill("e"))
        whole(deep, flat / "f")
        with deep.answered("read"):
            assert read_direct(deep / "f", 100) == fill("e")[:100]
        assert map_error(flat, "f", deep / "f", os.O_RDONLY) == errno.ELOOP
        assert read_direct(flat / "f", 100) == fill("e")[:100]
        deep.call("unmap_extents", "f")


def test_map_to_a_file_of_an_overlay_above_the_mount_fails(
    mountpoint: Path, lower: Path, tmp_path: Path
) -> None:
    """The overlay is mounted first: the stack depth of FUSE must not grow afterwards."""
    above, empty = tmp_path / "above", tmp_path / "empty"
    above.mkdir()
    empty.mkdir()
    load_file_system("overlay")
    with mounted(mountpoint, path="direct", entry_timeout=60.0, attr_timeout=60.0) as m:
        make(m, "f", fill("d"))
        nodeid = m.call("nodeid", "f")
        run("mount", "-t", "overlay", "o", "-o", f"lowerdir={mountpoint}:{empty}", str(above))
        # The test maps, since the daemon would wait for itself.
        device, shown = m.device(), os.open(above / "f", os.O_RDONLY)
        try:
            for lower_mapped in (False, True):
                with pytest.raises(MountError, match="ELOOP"):
                    map_extent(device, Extent(nodeid, shown))
                if not lower_mapped:
                    whole(m, backing(lower, fill("b")))
            with m.answered("read"):
                assert read_direct(m / "f", 100) == fill("b")[:100]
        finally:
            os.close(device)
            os.close(shown)
            run("umount", str(above))


@pytest.mark.parametrize("depth", ["0", "3", "x"])
def test_mount_with_an_invalid_stack_depth_fails(mountpoint: Path, depth: str) -> None:
    with pytest.raises(MountError, match="EINVAL"):
        mount_efuse(str(mountpoint), MountOptions.parse([f"stack_depth={depth}"]))


# Extents and backing files that change


def test_extents_of_an_earlier_version_are_not_served(mountpoint: Path, lower: Path) -> None:
    path, newer = backing(lower, fill("b")), backing(lower, fill("n"), "newer")
    with mounted(mountpoint, path="direct") as m:
        make(m, "f", fill("d"))
        first = {"offset": 0, "length": BLOCK}
        m.call("map_extent", "f", path, os.O_RDONLY, version=5, **first)
        assert read_direct(m / "f", BLOCK) == fill("b")[:BLOCK]
        m.call("map_extent", "f", newer, os.O_RDONLY, version=6, offset=BLOCK, length=BLOCK)
        with m.passed("read", "stale"):
            assert read_direct(m / "f", BLOCK) == fill("d")[:BLOCK]
        assert read_direct(m / "f", BLOCK, BLOCK) == fill("n")[:BLOCK]
        assert map_error(m, "f", path, os.O_RDONLY, version=5, **first) == errno.ESTALE
        m.call("unmap_extents", "f", offset=9 * BLOCK, length=1, version=7)
        with m.passed("read", "stale"):
            assert read_direct(m / "f", BLOCK, BLOCK) == fill("d")[BLOCK : 2 * BLOCK]


def test_sealed_backing_file_is_not_served_after_it_changed(mountpoint: Path, lower: Path) -> None:
    def append(path: str) -> None:
        with open(path, "ab") as file:
            file.write(b"x")

    def overwrite(path: str) -> None:
        with open(path, "r+b") as file:
            file.write(b"x")

    def by_map(path: str) -> None:
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            view[0] = 120

    def shorten(path: str) -> None:
        os.truncate(path, 10)

    changes = [append, overwrite, by_map, shorten]
    with mounted(mountpoint, path="direct") as m:
        make(m, "f", fill("d"))
        for change in changes:
            path = backing(lower, fill("b"))
            whole(m, path, sealed=True)
            assert read_direct(m / "f", BLOCK) == fill("b")[:BLOCK]
            assert read_direct(m / "f", BLOCK) == fill("b")[:BLOCK]
            change(path)
            with m.passed("read", "stale"):
                assert read_direct(m / "f", BLOCK) == fill("d")[:BLOCK], change


def test_sealed_backing_file_that_changes_during_a_read_is_not_served(
    mountpoint: Path, lower: Path
) -> None:
    size = 64 * BLOCK
    old = fill("b", size)
    buffer = mmap.mmap(-1, size)
    begun = threading.Event()

    def read_until_it_changed() -> bytes:
        """Read without a pause until the bytes differ from *old*, and return them."""
        while True:
            os.preadv(fd, [buffer], 0)
            begun.set()
            if buffer[:] != old:
                return buffer[:]

    with mounted(mountpoint, path="direct") as m, ThreadPoolExecutor(1) as pool:
        make(m, "f", fill("d", size))
        fd = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        for _ in range(40):
            path = backing(lower, old)
            whole(m, path, sealed=True)
            begun.clear()
            hits = m.count("read", "hits")
            reading = pool.submit(read_until_it_changed)
            begun.wait(DEADLINE_S)
            with open(path, "r+b", buffering=0) as file:
                file.write(b"x" * size)
            got = reading.result(DEADLINE_S)
            assert len(got) == size
            assert b"x" not in got
            assert m.count("read", "hits") > hits
        os.close(fd)


def test_seal_of_a_file_with_a_writable_map_fails(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b"))
    with mounted(mountpoint, path="direct") as m:
        make(m, "f", fill("d"))
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            assert map_error(m, "f", path, os.O_RDONLY, sealed=True) == errno.ETXTBSY
            view[0] = 120
        whole(m, path, sealed=True)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0), m.passed("read", "stale"):
            assert read_direct(m / "f", BLOCK) == fill("d")[:BLOCK]
        assert read_direct(m / "f", BLOCK) == b"x" + fill("b")[1:BLOCK]


def test_read_beyond_the_end_of_a_truncated_backing_file_goes_to_the_daemon(
    mountpoint: Path, lower: Path
) -> None:
    path = backing(lower, fill("b"))
    with mounted(mountpoint, path="direct", **LONG) as m:
        make(m, "f", fill("d"))
        m.call("map_extent", "f", path, os.O_RDONLY, offset=0, length=4 * BLOCK)
        os.truncate(path, BLOCK + 10)
        with m.passed("read", "failed"):
            assert read_direct(m / "f", BLOCK, BLOCK) == fill("d")[BLOCK : 2 * BLOCK]
        assert read_direct(m / "f", BLOCK) == fill("b")[:BLOCK]


def test_mapped_backing_file_is_served_after_its_name_was_replaced(
    mountpoint: Path, lower: Path
) -> None:
    path = backing(lower, fill("b"))
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        whole(m, path)
        os.rename(backing(lower, fill("x"), "new"), path)
        assert read(m / "f") == fill("b")


def test_reused_nodeid_has_no_extents(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b"))
    with mounted(mountpoint, reuse_nodeids=True) as m:
        make(m, "f", fill("d"))
        whole(m, path)
        nodeid = m.call("nodeid", "f")
        os.unlink(m / "f")
        eventually(lambda: m.drop() or nodeid not in m.call("counts"))
        make(m, "g", fill("e"))
        assert m.call("nodeid", "g") == nodeid
        with m.passed("read"):
            assert read(m / "g") == fill("e")


def test_backing_file_is_released_when_unmapped_or_unmounted(mountpoint: Path, lower: Path) -> None:
    """After unmap, forget and unmount, the lower file system can be unmounted."""
    image, point = lower / "image", lower / "point"
    image.write_bytes(bytes(1 << 22))
    point.mkdir()
    run("mkfs.ext4", "-q", "-F", image)
    run("mount", "-o", "loop", image, point)
    busy = lambda: run("umount", point, check=False).returncode != 0  # noqa: E731
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        (point / "b").write_bytes(fill("b"))
        m.call("map_extent", "f", str(point / "b"), os.O_RDONLY, offset=0, length=SIZE)
        assert busy()
        m.call("map_extent", "f", backing(lower, fill("c")), os.O_RDONLY, offset=10, length=10)
        assert busy()
        m.call("unmap_extents", "f", offset=0, length=10)
        assert busy()
        m.call("unmap_extents", "f", offset=20)
        eventually(lambda: not busy())
        run("mount", "-o", "loop", image, point)
        m.call("map_extent", "f", str(point / "b"), os.O_RDONLY)
    eventually(lambda: not busy())


# Writes to mapped files


def test_write_to_a_mapped_file_goes_to_the_backing_file(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b"))
    with mounted(mountpoint) as m:
        make(m, "f", fill("b"))
        whole(m, path, write=True)
        expected = bytearray(fill("b"))
        for flags in (0, os.O_SYNC, os.O_DSYNC):
            with m.answered("write"):
                assert write(m / "f", b"hello", 100 + flags % 97, flags) == 5
            expected[100 + flags % 97 : 105 + flags % 97] = b"hello"
        assert Path(path).read_bytes() == expected
        assert read(m / "f") == expected
        assert "read" not in m.asked()


def test_watcher_of_the_backing_file_is_told_of_each_write(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b"))
    libc = ctypes.CDLL(None, use_errno=True)
    watcher = libc.inotify_init1(os.O_NONBLOCK)
    with mounted(mountpoint) as m, open(watcher, "rb", buffering=0) as events:
        make(m, "f", fill("b"))
        whole(m, path, write=True)
        watch = libc.inotify_add_watch(watcher, os.fsencode(path), _IN_MODIFY)
        for flags in (os.O_WRONLY, os.O_WRONLY | os.O_DIRECT):
            with m.answered("write"), open(os.open(m / "f", flags), "wb", buffering=0) as file:
                file.write(mmap.mmap(-1, BLOCK))
            assert struct.unpack("=iIII", events.read(64)) == (watch, _IN_MODIFY, 0, 0)
        assert events.read(64) is None


def test_direct_write_to_a_mapped_file_goes_to_the_backing_file(
    mountpoint: Path, lower: Path
) -> None:
    path = backing(lower, fill("b"))
    with mounted(mountpoint) as m:
        make(m, "f", fill("b"))
        whole(m, path, write=True)
        buffer = mmap.mmap(-1, 4 * BLOCK)
        buffer[:] = fill("w", 4 * BLOCK)
        fd = os.open(m / "f", os.O_RDWR | os.O_DIRECT)
        with m.answered("write"):
            assert os.pwritev(fd, [buffer], BLOCK) == 4 * BLOCK
        os.close(fd)
        expected = fill("b")[:BLOCK] + fill("w", 4 * BLOCK) + fill("b")[5 * BLOCK :]
        assert Path(path).read_bytes() == expected


def test_write_outside_a_writable_extent_goes_to_the_daemon(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b"))
    with mounted(mountpoint, **LONG) as m:
        make(m, "f", fill("d"))
        whole(m, path)
        fd = os.open(m / "f", os.O_WRONLY | os.O_DIRECT)
        with m.passed("write", "unmapped"):
            assert os.pwrite(fd, b"hello", 0) == 5
        span = {"offset": BLOCK, "length": BLOCK, "write": True}
        m.call("map_extent", "f", path, os.O_RDWR, **span)
        for offset in (BLOCK - 1, 2 * BLOCK - 1):
            with m.passed("write", "unmapped"):
                assert os.pwrite(fd, b"hello", offset) == 5
        os.close(fd)
        assert Path(path).read_bytes() == fill("b")
        assert bytes(m.call("inode", "f").data[BLOCK - 1 : BLOCK + 4]) == b"hello"


def test_write_that_extends_a_partly_mapped_file_goes_to_the_daemon(
    mountpoint: Path, lower: Path
) -> None:
    path = backing(lower, fill("b"))
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        m.call("map_extent", "f", path, os.O_RDWR, offset=0, length=1 << 20, write=True)
        with m.answered("write"):
            write(m / "f", b"inside", SIZE - 6)
        with m.passed("write", "declined"):
            write(m / "f", b"behind", SIZE - 5)
        assert Path(path).stat().st_size == SIZE


def test_append_to_a_wholly_mapped_file_is_answered_in_the_kernel(
    mountpoint: Path, lower: Path
) -> None:
    path = backing(lower, b"")
    with mounted(mountpoint) as m:
        make(m, "f", b"")
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        for n in range(50):
            with m.answered("write"):
                os.write(fd, b"line %d\n" % n)
        os.close(fd)
        assert Path(path).read_bytes() == b"".join(b"line %d\n" % n for n in range(50))


def test_append_goes_to_the_end_that_the_backing_file_has_now(
    mountpoint: Path, lower: Path
) -> None:
    """Another process has appended to the backing file. No byte of that is overwritten."""
    path = backing(lower, b"first\n")
    with mounted(mountpoint) as m:
        make(m, "f", b"first\n")
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        with open(path, "ab") as other:
            other.write(b"second\n")
        with m.answered("write"):
            os.write(fd, b"third\n")
        os.close(fd)
        assert Path(path).read_bytes() == b"first\nsecond\nthird\n"


@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
@pytest.mark.parametrize("offset", [0, BLOCK])
def test_append_to_a_backing_file_that_ends_before_its_extent_goes_to_the_daemon(
    mountpoint: Path, lower: Path, consistency: str, offset: int
) -> None:
    """The backing file may end before the extent, where its bytes do not belong to the file."""
    path = backing(lower, b"a head of others")
    with mounted(mountpoint, consistency=consistency, entry_timeout=600.0, attr_timeout=600.0) as m:
        make(m, "f", b"d" * offset)
        whole(m, path, write=True, offset=offset, backing_offset=BLOCK)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        with m.passed("write", "declined"):
            assert os.write(fd, b"appended") == 8
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == b"d" * offset + b"appended"
        assert Path(path).read_bytes() == b"a head of others"


def test_append_where_another_extent_is_mapped_goes_to_the_daemon(
    mountpoint: Path, lower: Path
) -> None:
    """The end of the first backing file lies where another one is mapped."""
    path, above = backing(lower, b"base", "base"), backing(lower, fill("a", 2 * BLOCK), "above")
    with mounted(mountpoint, consistency="exclusive") as m:
        make(m, "f", fill("d", 2 * BLOCK))
        whole(m, path, write=True)
        m.call("map_extent", "f", above, os.O_RDWR, length=2 * BLOCK, write=True)
        fd = os.open(m / "f", os.O_WRONLY | os.O_APPEND)
        with m.passed("write", "declined"):
            assert os.write(fd, b"appended") == 8
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == fill("d", 2 * BLOCK) + b"appended"
        assert Path(path).read_bytes() == b"base"


def test_write_keeps_its_offset_after_the_backing_descriptor_was_set_to_append(
    mountpoint: Path, lower: Path
) -> None:
    """The daemon gets the write, since the lower file system would append by the file's flag."""
    path = backing(lower, b"0123456789")
    with mounted(mountpoint) as m:
        make(m, "f", b"0123456789")
        whole(m, path, write=True, later_flags=os.O_APPEND)
        fd = os.open(m / "f", os.O_WRONLY)
        with m.passed("write", "declined"):
            assert os.pwrite(fd, b"here", 2) == 4
        os.close(fd)
        assert bytes(m.call("inode", "f").data) == b"01here6789"
        assert Path(path).read_bytes() == b"0123456789"


_RWF_APPEND, _RWF_NOAPPEND = 0x10, 0x20


@pytest.mark.parametrize("mapped", [False, True], ids=["read_and_written", "mapped"])
@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
def test_rwf_append_and_noappend_override_the_flags_of_the_file(
    mountpoint: Path, lower: Path, consistency: str, mapped: bool
) -> None:
    """The flags of the call win. If the file is mapped for writing, FUSE's own code handles it."""
    path = backing(lower, b"0123456789")
    with mounted(mountpoint, consistency=consistency, entry_timeout=600.0, attr_timeout=600.0) as m:
        make(m, "f", b"0123456789")
        whole(m, path, write=True)
        appends = os.open(m / "f", os.O_RDWR | os.O_APPEND)
        other = os.open(m / "f", os.O_RDWR)
        view = mmap.mmap(other, 10) if mapped else None
        hits = m.count("write", "hits")
        assert os.pwritev(appends, [b"here"], 2, _RWF_NOAPPEND) == 4
        assert Path(path).read_bytes() == b"01here6789"
        assert os.pwritev(other, [b"end"], 0, _RWF_APPEND) == 3
        assert Path(path).read_bytes() == b"01here6789end"
        # Otherwise FUSE asks the daemon, which does not look at the backing file.
        if not mapped:
            assert os.pread(other, 100, 0) == b"01here6789end"
        assert m.count("write", "hits") == hits + 2
        if view:
            view.close()
        os.close(appends)
        os.close(other)


def test_write_in_the_kernel_voids_the_attributes(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b"))
    with mounted(mountpoint, consistency="exclusive") as m:
        make(m, "f", fill("b"))
        whole(m, path, write=True)
        os.stat(m / "f")
        with m.answered("write"):
            write(m / "f", b"hello")
        m.log()
        os.stat(m / "f")
        assert "getattr" in m.asked()


def test_write_that_removes_setuid_bits_goes_to_the_daemon(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b"))
    os.chmod(path, 0o6777)
    with mounted(mountpoint) as m:
        m.model.create("f", fill("d"), mode=stat.S_IFREG | 0o777)
        os.stat(m / "f")
        whole(m, path, write=True)
        # The write goes past the page cache, because FUSE removes the bits before a buffered write.
        fd = os.open(m / "f", os.O_WRONLY | os.O_DIRECT)
        with m.passed("write", "declined"):
            Call(os.pwrite, fd, bytes(BLOCK), 0, uid=1000, gid=1000).result()
        assert os.stat(path).st_mode & 0o6000 == 0o6000
        os.chmod(path, 0o777)
        with m.answered("write"):
            Call(os.pwrite, fd, bytes(BLOCK), 0, uid=1000, gid=1000).result()
        os.close(fd)


def test_write_to_a_full_lower_file_system_fails(mountpoint: Path, lower: Path) -> None:
    """The daemon is asked in the end, and the writer gets its reply."""
    with small(lower) as point, mounted(mountpoint) as m:
        make(m, "f", b"")
        path = point / "b"
        path.touch()
        whole(m, str(path), write=True)
        m.call("deny", "write", 0, errno.ENOSPC)
        fd = os.open(m / "f", os.O_WRONLY)
        written = 0
        with pytest.raises(OSError) as caught:
            while True:
                written += os.write(fd, fill("w", 1 << 16))
        assert caught.value.errno == errno.ENOSPC
        os.close(fd)
        assert written > 1 << 20
        assert path.stat().st_size == written
        assert m.count("write", "failed") >= 1
        m.call("unmap_extents", "f")


def test_read_and_write_after_an_error_of_the_lower_file_system_fail(
    mountpoint: Path, lower: Path
) -> None:
    """The daemon is asked in the end, and also fails here: no call reports success."""
    with small(lower) as point, mounted(mountpoint, path="direct") as m:
        path = point / "b"
        path.write_bytes(fill("b"))
        make(m, "f", fill("d"))
        whole(m, str(path), write=True)
        assert write(m / "f", b"fine", 0, os.O_DIRECT) == 4
        shut_down(point)
        for opcode in ("read", "write"):
            m.call("deny", opcode, 0, errno.EIO)
        failed = m.count("write", "failed")
        fails(errno.EIO, write, m / "f", b"lost", 0, os.O_DIRECT)
        assert m.count("write", "failed") == failed + 1
        failed = m.count("read", "failed")
        fails(errno.EIO, read_direct, m / "f", BLOCK)
        assert m.count("read", "failed") == failed + 1
        m.call("unmap_extents", "f")


def test_acknowledged_writes_survive_the_death_of_the_daemon(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, b"")
    with mounted(mountpoint) as m:
        make(m, "f", b"")
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_WRONLY)
        acknowledged = 0
        timer = threading.Timer(0.5, m.kill)
        timer.start()
        try:
            while True:
                acknowledged += os.write(fd, b"%08d" % acknowledged)
        except OSError as error:
            assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        timer.join()
        data = Path(path).read_bytes()
        assert acknowledged > 0
        assert data[:acknowledged] == b"".join(b"%08d" % n for n in range(0, acknowledged, 8))
        fails(errno.ENOTCONN, os.close, fd)  # the FLUSH has no daemon
        m.end = lambda: None  # type: ignore[method-assign]


# Choice of the path


def test_forced_path_daemon_sends_reads_to_the_daemon(mountpoint: Path, lower: Path) -> None:
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        whole(m, backing(lower, fill("b")))
        m.connection.forced_path = "daemon"
        with m.passed("read"):
            assert read_direct(m / "f", 10) == fill("d")[:10]
        m.connection.forced_path = "auto"
        with m.answered("read"):
            assert read_direct(m / "f", 10) == fill("b")[:10]


_CHOOSER = """
#include "efuse.bpf.h"

int select_path(struct efuse_req *req)
{
    return efuse_req_offset(req) < 4096 ? EFUSE_PATH_DAEMON :
           efuse_req_offset(req) < 8192 ? EFUSE_PATH_DIRECT : 77;
}
"""


def test_select_path_handler_chooses_the_path(mountpoint: Path, lower: Path) -> None:
    with mounted(mountpoint, attach=False) as m:
        m.attach(handlers={"select_path": _CHOOSER})
        make(m, "f", fill("d"))
        whole(m, backing(lower, fill("b")))
        assert read_direct(m / "f", 10) == fill("d")[:10]
        assert read_direct(m / "f", 10, BLOCK) == fill("b")[BLOCK : BLOCK + 10]
        invalid = int((m.connection.path / "invalid_verdicts").read_text())
        assert read_direct(m / "f", 10, 2 * BLOCK) == fill("b")[2 * BLOCK : 2 * BLOCK + 10]
        assert int((m.connection.path / "invalid_verdicts").read_text()) == invalid + 1


# Changes while extents are in use


def test_reads_are_never_torn_while_extents_change(mountpoint: Path, lower: Path) -> None:
    """Each block that is read comes from one mapped file, or from the daemon, and is never torn."""
    names = "bcd"
    blocks = {x: fill(x, 64 * BLOCK) for x in names}
    with mounted(mountpoint) as m:
        make(m, "f", blocks["d"])
        files = {x: backing(lower, blocks[x], x) for x in names}
        seen: set[str] = set()
        stop = threading.Event()
        wrong: list[bytes] = []

        def reader() -> None:
            rng = random.Random(threading.get_ident())
            while not stop.is_set():
                n = rng.randrange(4)
                got = read_direct(m / "f", BLOCK, n * BLOCK)
                letter = chr(got[0])
                seen.add(letter)
                if got != blocks.get(letter, b"")[n * BLOCK : (n + 1) * BLOCK]:
                    wrong.append(got)

        threads = [threading.Thread(target=reader) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for n in range(2000):
                x = names[n % 2]
                m.call("map_extent", "f", files[x], os.O_RDONLY, offset=0, length=64 * BLOCK)
                m.call("unmap_extents", "f", offset=(n % 4) * BLOCK, length=BLOCK)
                if n > 60 and seen == set(names):
                    break
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not wrong
        assert seen == set(names)


def test_no_write_reaches_the_backing_file_after_unmap(mountpoint: Path, lower: Path) -> None:
    """A WRITE takes so long that nearly every unmap comes in the middle of one."""
    size = 8 << 20
    path = backing(lower, bytes(size))
    with mounted(mountpoint) as m:
        m.connection.max_request = size
        make(m, "f", bytes(size))
        stop = threading.Event()

        def writer() -> None:
            fd = os.open(m / "f", os.O_WRONLY | os.O_DIRECT)
            buffer = mmap.mmap(-1, size)
            number = 0
            while not stop.is_set():
                number += 1
                buffer[:] = bytes([number % 256]) * size
                os.pwritev(fd, [buffer], 0)
            os.close(fd)

        thread = threading.Thread(target=writer)
        thread.start()
        try:
            for _ in range(8):
                whole(m, path, write=True)
                hits = m.count("write", "hits")
                eventually(lambda hits=hits: m.count("write", "hits") > hits)
                m.call("unmap_extents", "f")
                before = Path(path).read_bytes()
                passed = m.count("write", "unmapped")
                eventually(lambda passed=passed: m.count("write", "unmapped") > passed + 2)
                assert Path(path).read_bytes() == before
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize("consistency", ["ttl", "cto", "exclusive"])
@pytest.mark.parametrize("how", ["map", "unmap"])
def test_pages_show_the_new_content_after_an_extent_was_replaced(
    mountpoint: Path, lower: Path, consistency: str, how: str
) -> None:
    old, new = fill("o", 2 * BLOCK), fill("n", 2 * BLOCK)
    first, second = backing(lower, old, "first"), backing(lower, new, "second")
    with mounted(mountpoint, consistency=consistency, entry_timeout=600.0, attr_timeout=600.0) as m:
        make(m, "f", new)
        whole(m, first)
        fd = os.open(m / "f", os.O_RDONLY)
        view = mmap.mmap(fd, 2 * BLOCK, prot=mmap.PROT_READ)
        assert view[:] == old
        if how == "map":
            m.call("map_extent", "f", second, os.O_RDONLY, version=1)
        else:
            m.call("unmap_extents", "f")
        assert os.pread(fd, 2 * BLOCK, 0) == new
        assert view[:] == new
        again = os.open(m / "f", os.O_RDONLY)
        with tempfile.TemporaryFile() as copy:
            os.sendfile(copy.fileno(), again, 0, 2 * BLOCK)
            assert os.pread(copy.fileno(), 2 * BLOCK, 0) == new
        os.close(again)
        view.close()
        os.close(fd)


def _sent(fd: int, position: int) -> bytes:
    """Return the first bytes of a block by sendfile(2), which uses FUSE's pages."""
    with tempfile.TemporaryFile() as copy:
        assert os.sendfile(copy.fileno(), fd, position, BLOCK) == BLOCK
        return os.pread(copy.fileno(), 8, 0)


def test_kept_pages_are_not_older_than_a_page_that_a_map_has_shown(
    mountpoint: Path, lower: Path
) -> None:
    path = backing(lower, b"%08d" % 0 * (200 * BLOCK // 8))
    with mounted(mountpoint, entry_timeout=600.0, attr_timeout=600.0) as m:
        make(m, "f", fill("d", 200 * BLOCK))
        whole(m, path)
        fd = os.open(m / "f", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        assert _sent(fd, 0) == b"%08d" % 0
        Path(path).write_bytes(b"%08d" % 1 * (200 * BLOCK // 8))
        with mmap.mmap(fd, 200 * BLOCK, prot=mmap.PROT_READ) as view:
            view.madvise(mmap.MADV_RANDOM)
            assert view[100 * BLOCK :][:8] == b"%08d" % 1
        assert _sent(fd, 0) == b"%08d" % 1
        os.close(fd)


def _first(fd: int) -> bytes:
    """Return the first bytes of a file by a memory map, which shows FUSE's pages."""
    with mmap.mmap(fd, BLOCK, prot=mmap.PROT_READ) as view:
        return view[:8]


@pytest.mark.parametrize("consistency", ["ttl", "cto", "exclusive"])
def test_pages_kept_over_an_open_show_the_mapped_file(
    mountpoint: Path, lower: Path, consistency: str
) -> None:
    """The reply to OPEN has allowed FUSE to keep the pages."""
    times = {"entry_timeout": 600.0, "attr_timeout": 600.0}
    with mounted(mountpoint, consistency=consistency, open_flags=FOPEN_KEEP_CACHE, **times) as m:
        make(m, "f", fill("d", BLOCK))
        for content in (b"%08d" % 1, b"%08d" % 2):
            path = backing(lower, content * (BLOCK // 8), content.decode())
            m.call("map_extent", "f", path, os.O_RDONLY, version=int(content))
            fd = os.open(m / "f", os.O_RDONLY)
            assert _first(fd) == content
            os.close(fd)


@pytest.mark.parametrize("consistency", ["ttl", "cto", "exclusive"])
def test_open_makes_a_map_from_before_show_the_mapped_file(
    mountpoint: Path, lower: Path, consistency: str
) -> None:
    """The reply to OPEN has allowed FUSE to keep the pages, which a map shows."""
    times = {"entry_timeout": 600.0, "attr_timeout": 600.0}
    with mounted(mountpoint, consistency=consistency, open_flags=FOPEN_KEEP_CACHE, **times) as m:
        make(m, "f", fill("d", BLOCK))
        contents = [b"%08d" % number * (BLOCK // 8) for number in (1, 2)]
        paths = [backing(lower, content, str(n)) for n, content in enumerate(contents)]
        m.call("map_extent", "f", paths[0], os.O_RDONLY, version=1)
        fd = os.open(m / "f", os.O_RDONLY)
        with mmap.mmap(fd, BLOCK, prot=mmap.PROT_READ) as view:
            assert view[:] == contents[0]
            m.call("map_extent", "f", paths[1], os.O_RDONLY, version=2)
            os.close(os.open(m / "f", os.O_RDONLY))
            assert view[:] == contents[1]
        os.close(fd)


def test_append_leaves_no_stale_page_at_the_end_of_file_that_fuse_assumed(
    mountpoint: Path, lower: Path
) -> None:
    path = backing(lower, fill("d", BLOCK))
    with mounted(mountpoint, entry_timeout=600.0, attr_timeout=600.0) as m:
        make(m, "f", fill("d", BLOCK))
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR | os.O_APPEND)
        with open(path, "ab") as other:
            other.write(fill("o", BLOCK))
        with m.answered("write"):
            assert os.write(fd, fill("a", BLOCK)) == BLOCK
        assert Path(path).read_bytes() == fill("d", BLOCK) + fill("o", BLOCK) + fill("a", BLOCK)
        assert _sent(fd, BLOCK) == fill("o", BLOCK)[:8]
        os.close(fd)


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_reads_return_nothing_older_after_a_map_with_stores_was_closed(
    tmp_path: Path, mountpoint: Path, lower: Path, kind: str
) -> None:
    """The stores through the closed map have changed no timestamp, and leave no other trace."""
    below = lower
    if kind == "tmpfs":
        below = tmp_path / "tmpfs"
        below.mkdir()
        run("mount", "-t", "tmpfs", "tmpfs", below)
    path = backing(below, b"%08d" % 0 * (4 * BLOCK // 8))
    with mounted(mountpoint, entry_timeout=600.0, attr_timeout=600.0) as m:
        make(m, "f", fill("d", 4 * BLOCK))
        whole(m, path)
        fd, other = os.open(m / "f", os.O_RDONLY), os.open(path, os.O_RDWR)
        with mmap.mmap(other, BLOCK) as stores:
            stores[:8] = b"%08d" % 0
            eventually(lambda: _old(os.fstat(other)))
            assert set(_seen_in_turn(m, fd)) == {b"%08d" % 0}
            assert _first(fd) == b"%08d" % 0
            stores[:8] = b"%08d" % 1
        before = os.fstat(other).st_ctime_ns
        assert set(_seen_in_turn(m, fd)) == {b"%08d" % 1}
        assert _first(fd) == b"%08d" % 1
        assert os.fstat(other).st_ctime_ns == before
        os.close(fd)
        os.close(other)


def _seen_in_turn(m: Mount, fd: int) -> list[bytes]:
    """Return the first bytes of the file by each path in turn, two times."""
    seen = []
    for path in ("direct", "cache") * 2:
        m.connection.forced_path = path
        seen.append(os.pread(fd, BLOCK, 0)[:8])
    return seen


def _old(when: os.stat_result) -> bool:
    return time.time_ns() - when.st_ctime_ns > 100_000_000


@pytest.mark.parametrize("kind", ["plain", "overlay"])
def test_reads_return_nothing_older_after_a_store_that_changes_no_timestamp(
    request: pytest.FixtureRequest, lower: Path, mountpoint: Path, kind: str
) -> None:
    """A store into a page that has been stored into before changes no timestamp."""
    above: Path = request.getfixturevalue("overlay") if kind == "overlay" else lower
    path = backing(above, b"%08d" % 0 * (4 * BLOCK // 8))
    below = os.open(path, os.O_RDWR)
    stores = mmap.mmap(below, BLOCK)
    stores[:8] = b"%08d" % 1
    eventually(lambda: _old(os.fstat(below)))
    with mounted(mountpoint, stack_depth=2, entry_timeout=600.0, attr_timeout=600.0) as m:
        make(m, "f", fill("d", 4 * BLOCK))
        whole(m, path)
        fd = os.open(m / "f", os.O_RDONLY)
        assert set(_seen_in_turn(m, fd)) == {b"%08d" % 1}
        stores[:8] = b"%08d" % 2
        assert set(_seen_in_turn(m, fd)) == {b"%08d" % 2}
        os.close(fd)
    stores.close()
    os.close(below)


def test_reads_return_nothing_older_during_a_long_write_to_the_backing_file(
    source: Mount, mountpoint: Path, lower: Path
) -> None:
    """The write sets the timestamp of the backing file before it copies any bytes."""
    path = backing(lower, b"%08d" % 0 * (2 * BLOCK // 8))
    with mounted(mountpoint, entry_timeout=600.0, attr_timeout=600.0) as m:
        make(source, "source", b"%08d" % 1 * (BLOCK // 8))
        make(m, "f", fill("d", 2 * BLOCK))
        whole(m, path)
        fd = os.open(m / "f", os.O_RDONLY)
        source.hold("read", "before")

        def long() -> int:
            pages = mmap.mmap(os.open(source / "source", os.O_RDONLY), BLOCK, prot=mmap.PROT_READ)
            below = os.open(path, os.O_RDWR)
            return os.pwritev(below, [memoryview(pages), b"%08d" % 1 * (BLOCK // 8)], 0)

        call = Call(long)
        source.wait_held()
        eventually(lambda: _old(os.stat(path)))
        assert set(_seen_in_turn(m, fd)) == {b"%08d" % 0}
        source.release()
        assert call.result() == 2 * BLOCK
        assert set(_seen_in_turn(m, fd)) == {b"%08d" % 1}
        os.close(fd)
